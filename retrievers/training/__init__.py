"""Recipes that make checkpoints: pre-training, continual pre-training, fine-tuning and presets."""
