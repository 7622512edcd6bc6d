"""Stored results side by side.

Results become columns (a collection under one protocol) and rows (a model under one recipe) in
`rows`; `standings` resamples the queries of each column once for all rows, which gives intervals,
and groups in place of ranks; `published_scores` reads what others claim; `assembly` makes the
record of it all.

Types, in `records`: `Board` holds `CollectionColumn`, `SuiteColumn`, `Row` (with `Cell`, `Mean`,
`Score`) and `Claim`. Tables and the page in `reports` are made from a `Board` alone.

Read `records.py`, then `rows.py`, `standings.py` and `assembly.py`.
"""
