"""What goes in: rows as the model sees them, and numbers about them. No weights are loaded.

`preview` is in the door; this room has another name, since a package and a function can't share one.
"""
