"""Training on collections: their texts and judgements as training data."""
