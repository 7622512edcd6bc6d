"""Ablations: one changed field a row, several seeds, and what that says about a recipe."""
