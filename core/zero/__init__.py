"""Training with DeepSpeed's ZeRO. Imported only where a spec asks for it: the package is optional, and loads slowly."""
