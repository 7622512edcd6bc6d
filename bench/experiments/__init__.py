"""Experiments: rows that change one field each, trained with several seeds and compared."""
