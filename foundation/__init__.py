"""Small modules that every package may import: errors, records, files, locks and array types."""
