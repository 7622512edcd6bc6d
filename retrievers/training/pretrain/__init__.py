"""Pre-training: presets, start models, texts, and the training itself."""
