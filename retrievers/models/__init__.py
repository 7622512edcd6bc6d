"""Models: cards, recipes, checkpoints, checks."""
