"""Models that are divided among processes. Imported only where a spec asks for it: torch's part of it loads slowly."""
