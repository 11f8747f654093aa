"""Ready specs, one for each task; `recipe new` copies them."""
