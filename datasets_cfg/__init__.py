"""Collections: declared metadata, readers and checks. Knows no model and no score."""
