"""Checkpoints of a training: evaluated as they are completed, chosen from, and what they forget."""
