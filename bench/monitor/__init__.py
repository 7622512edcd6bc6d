"""Checkpoints of a running training: evaluation, learning curve, and selection of the best one."""
