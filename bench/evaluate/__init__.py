"""One model on one collection: vectors, ranking, scores."""
