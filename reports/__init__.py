"""Pictures of stored results: tables, plots, pages. Knows nothing upstream of a record."""
