"""Our own work for 1,000 queries that a search system answers at once, one at a time."""

import itertools

import pytest

from bench.evaluation.asking import Caller, open_responses
from retrievers.encoders.search_system import SearchSystem

QUERIES = {f"q{row}": "text" for row in range(1_000)}


@pytest.mark.parametrize("rows", [10, 100, 1_000])
def bench_ask_1000(benchmark, tmp_path, rows):
    ranking = [(f"d{row}", 10.0 - row / 100) for row in range(rows)]
    system = SearchSystem(lambda texts, k: [ranking] * len(texts), "instant")
    numbers = itertools.count()

    def ask():
        with open_responses(tmp_path / f"{next(numbers)}.jsonl") as kept:
            Caller(system, rows, 60.0, kept.add).ask(QUERIES, 1)
        return kept

    assert len(benchmark(ask).responses) == len(QUERIES)
