"""What a model is: cards, recipes, checkpoints, checks."""
