"""Comparison of models, query by query: paired statistics, means of suites, transfer.

A `statistics.ScoreMatrix` has the scores of several models on the same queries of one collection,
with one set of resamples that every pair shares. `statistics.Difference` is the only record of a
paired difference, also in `bench.gate`, `bench.boards`, `bench.monitor` and `bench.experiments`.

Read `statistics.py` (tests and intervals) first, then `pairs.py` (which results may be compared)
and `comparison.py` (the use case). What unjudged documents can change is in `holes.py` (exact
bounds) and `settling.py` (the model and the verdicts), and `judging_list.py` is the use case of
their judgements.
"""
