"""Stored results: one folder for each evaluation, below COLLECTION/MODEL/KEY.

`result` has the records. `Evaluation` is one model on one collection: its `Result` (means,
`Protocol`, recipe, `Timings`, `Conditions`), the values of its queries, its ranking, and the folder
that holds it, if any. Then read `load`, the one reader; `find`, by what a user types; `reuse`,
which stored results answer for an evaluation that is asked for again; `conditions` of this process;
`location`, folders and URLs; `export`, to mteb and model cards.
"""
