"""Pictures of stored results: tables, plots, a page. Knows nothing upstream of a record."""
