"""Collections: declared facts, readers and checks. Knows no model and no score."""
