"""Continual pre-training: one domain after the other.

`sequence` has `adapt`, which trains on each `Domain` in turn, `Method`, the base class of all
methods, and their names. A method changes the texts that a training reads, or its objective:
`baselines` has plain and joint training, replay and one adapter per domain, `regularization` has
EWC and distillation, and `das` soft masks on gradients.
"""
