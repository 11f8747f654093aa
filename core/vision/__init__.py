"""What the vision recipes share: drawn sample pictures, boxes, augmentation, detection losses, average precision."""
