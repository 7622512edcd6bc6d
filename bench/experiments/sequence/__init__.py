"""Continual pre-training compared: one sequence of collections, learnt in several ways."""
