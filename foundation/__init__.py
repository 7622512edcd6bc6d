"""Small things that every room may import: errors, records, files, locks, array types."""
