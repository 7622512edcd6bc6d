"""Stored results: records, where they lie, finding and merging them."""
