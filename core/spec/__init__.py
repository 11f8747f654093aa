"""From a TOML file to a validated `Spec`, with the place of every value and of every problem."""
