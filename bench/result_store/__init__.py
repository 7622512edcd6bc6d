"""Stored results: one folder for each evaluation, below COLLECTION/MODEL/KEY.

`result` has `save`, and `load`, the only reader; the records are in
`bench.evaluation.result_record`. `find` finds results by the names that a user types; `reuse`
decides which stored result can replace an evaluation; `export` writes results for mteb.
"""
