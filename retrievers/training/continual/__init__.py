"""Continual pre-training: one domain after the other.

`sequence` has `adapt`, which trains on each `Domain` in turn, and `Method`, the base of all
methods: a method changes the texts that a training reads, or its objective. Every other file is a
method, found by its name: to add one, write one file.
"""
