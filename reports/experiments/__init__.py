"""Experiments as Markdown and CSV."""
