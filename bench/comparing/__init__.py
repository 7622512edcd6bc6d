"""Comparison of models, query by query: paired statistics, means of suites, transfer.

Types, in the order in which they are made:

* `statistics.ScoreMatrix`: scores of several models on the same queries of one collection, float64
  ``(queries, models)``, with one set of resamples that every pair shares.
* `statistics.PairedScores`: one column minus another, with its resamples.
* `statistics.Difference`: the conclusion, on a collection or in a mean. It is the only record of a
  paired difference, also in `bench.gate`, `bench.boards`, `bench.monitor` and `bench.experiments`.
* `pairs.ComparedModel`: a model with its evaluations by collection. `pairs.Comparison`: two of
  them, with a `pairs.ComparisonRow` for each collection and suite.
* `transfer.Forgetting`: checkpoints by collections, with backward and forward transfer.
* `comparison.ChangedQueries`: the queries on which two models differ most.

Read `statistics.py` (the tests and intervals) first, then `pairs.py` (which results may be
compared) and `comparison.py` (the use case).
"""
