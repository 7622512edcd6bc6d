"""Continual pre-training: one domain after the other."""
