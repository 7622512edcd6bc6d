"""Bundles: what a reader needs to repeat results and ablations.

`manifest` has the records of a bundle, and refuses one that names code elsewhere; `copies` copies
what commands name, `bundle` writes the folder, and `replay` repeats its commands and compares the
scores.
"""
