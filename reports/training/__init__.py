"""Trainings as Markdown and CSV: quality against steps, and what a sequence of them keeps."""
