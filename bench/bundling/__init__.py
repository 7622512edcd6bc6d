"""Bundles: what a reader needs to repeat results.

`commands` finds the command that repeats a stored result, `bundle` writes the folder, and `replay`
repeats its commands and compares the scores of each query.
"""
