"""A new checkpoint against a baseline: evaluate both, compare, decide.

    python examples/new_checkpoint.py [COLLECTION] [CANDIDATE] [BASELINE]

The defaults need no download: hashed words against BM25 on the embedded collection.
"""

import sys

import bench

collection, candidate, baseline = [
    *sys.argv[1:],
    *["stdlib-code", "hashing", "bm25"][len(sys.argv) - 1 :],
]

new = bench.evaluate(candidate, collection, results="results")
old = bench.evaluate(baseline, collection, results="results")
print(new.measures)

comparison = bench.compare(new, old)
print(comparison.table.to_string(index=False))

verdict = bench.check(new, old, margin=0.02)
print(verdict.outcome, *verdict.reasons, sep="\n  ")
