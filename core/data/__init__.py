"""From `[data]` to rows: hub, local files or sample, checked before the first update."""
