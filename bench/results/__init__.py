"""Stored results: one folder for each evaluation, below COLLECTION/MODEL/KEY.

`result` has the records, `save`, and `load`, the one reader. `Evaluation` is one model on one
collection: its `Result` (means, `Protocol`, recipe, `Timings`, `Conditions`), the values of its
queries, its ranking, and the folder that holds it, if any. Then read `find`, by what a user types;
`reuse`, which stored results answer for an evaluation that is asked for again; `location`, folders
and URLs; `export`, to mteb and model cards.
"""
