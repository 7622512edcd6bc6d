"""Recipes that make checkpoints: pre-training objectives, fine-tuning, and their presets."""
