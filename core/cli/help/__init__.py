"""What several commands share: keys and recipes described in words, example specs, text layout, shell completion."""
