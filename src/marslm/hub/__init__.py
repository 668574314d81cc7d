"""What leaves the project: checkpoints for other engines."""
