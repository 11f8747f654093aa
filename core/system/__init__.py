"""Files, secrets, optional packages, and what other libraries print."""
