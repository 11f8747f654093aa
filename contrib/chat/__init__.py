"""Chat models: supervised fine-tuning, preferences and rewards. Conversations are rendered by the model's template."""
