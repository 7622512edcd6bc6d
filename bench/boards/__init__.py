"""Leaderboards: stored results of several models in one table.

`rows` sorts results into columns (a collection under one protocol) and rows (a model under one
recipe). `rank_groups` resamples the queries of each column once for all rows, which gives intervals
and groups of models that do not differ significantly. `build` makes a `Leaderboard` of all this and
of published tables.

Types, in `records`: `Leaderboard` holds `CollectionColumn`, `SuiteColumn`, `Row` (with `Cell`,
`Mean`, `Score`) and `Claim`. The tables and the page in `reports` are made from it alone.

Read `records.py`, then `rows.py`, `rank_groups.py` and `build.py`.
"""
