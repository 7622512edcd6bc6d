"""Stored results side by side: columns, rows, intervals, groups."""
