"""Plain continual pre-training: the preset's objective on one domain after the other."""

from retrievers.training.continual.sequence import Method


class Plain(Method, kw_only=True):
    """Sequential training without any measure against forgetting."""
