"""Stored results: one folder for each evaluation, below COLLECTION/MODEL/KEY.

`result` has the records, `save`, and `load`, the only reader. An `Evaluation` is one model on one
collection: its `Result` (means, `Protocol`, recipe, `Timings`, `Conditions`), the scores of each
query, its ranking, and its folder, if it is stored. `find` finds results by the names that a user
types; `reuse` decides which stored result can replace an evaluation; `export` writes results for
mteb.
"""
