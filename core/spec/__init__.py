"""Read TOML files into a validated `Spec`, and report every problem with its place in the file."""
