"""The first spec for one's own data: what files hold is read and guessed, and written down with comments."""
