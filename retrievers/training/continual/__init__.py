"""Continual pre-training: one domain after the other. `sequence` has `adapt` and `Method`."""
