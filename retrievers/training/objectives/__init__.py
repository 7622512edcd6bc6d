"""Pre-training objectives, and what they share."""
