"""The shared loop and what it is made of: order, batches, updates, evaluation, events."""
