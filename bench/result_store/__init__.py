"""Stored results: one folder for each evaluation, below COLLECTION/MODEL/KEY.

`result` saves, loads and reuses them; the records are in `bench.evaluation.result_record`. `find`
finds results by the names that a user types, and writes them as TREC run files.
"""
