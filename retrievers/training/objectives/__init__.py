"""Pre-training objectives, and the modules that they share."""
