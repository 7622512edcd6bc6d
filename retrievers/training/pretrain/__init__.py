"""Pre-training an encoder on texts."""
