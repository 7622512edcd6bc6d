"""Continual pre-training: one domain after the other.

`sequence` has `adapt`, which trains on each `Domain` in turn, and `Method`, the base class of all
methods. A method changes the texts that a training reads, or its objective. Every other module is a
method and is found by its name: to add a method, write one file.
"""
