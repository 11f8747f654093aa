"""Exported forms of a trained model, the check that each is still the same model, and the model card."""
