"""Evaluate dense retrievers: texts become vectors, vectors a ranking, a ranking scores."""

__version__ = "0.1.0"
