"""Published scores, measured again with real data and real weights.

Run ``python tests/reproduce.py [--data-dir DIR] [--cache-dir DIR]``, or ``tox -e reproduce``. Does
the whole path (reading, tokenizing, pooling, searching, scoring) give the scores that were
published for the same checkpoint? Tests with small oracles cannot answer that. ``check`` compares
all-MiniLM-L6-v2 with the ``expected`` scores of its card; the evaluations are new, but vectors in
the cache are used. Rankings of others are scored by ``test_real_runs.py``.

The data folder (BENCH_DATA by default) holds collections in BEIR's layout; nothing is downloaded.
Encoding both collections takes minutes on two cores. Exit code 0: all within tolerance; 5: a miss;
2 or 4: data are missing or are not the published ones.
"""

import sys
import tempfile

from bench.__main__ import main

COLLECTIONS = ("beir/scifact", "beir/nfcorpus")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as results:
        command = ["check", "minilm", "--baseline", "published", "--expect-same"]
        options = ["--on", *COLLECTIONS, "--results", results, *sys.argv[1:]]
        sys.exit(main([*command, *options]))
