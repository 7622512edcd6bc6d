"""Memory budgets: sizes, what is free, plans that keep their promise, refusals that help."""

import subprocess
import sys
from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation import index_search as budget
from bench.evaluation.index_search import (
    check_index_fits,
    default_budget,
    plan_search,
    resident_bytes,
)
from foundation.errors import BenchError
from foundation.machine import format_size, parse_size
from retrievers.index.faiss_index import IndexSpec

MARCO = (8_841_823, 768)

# Sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("800 mb", 800 * 10**6),
        (".5kB", 500),
        ("123456", 123456),
        (" 7B ", 7),
    ],
)
def test_a_size_is_read_in_decimal_and_binary_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "2GX", "-1GB", "0", "0.1", "1e9", "1,5GB", "2GB 3", "٣", "9" * 400]
)
def test_a_malformed_size_is_refused_with_examples(text):
    with pytest.raises(BenchError, match="is not a size") as caught:
        parse_size(text)
    assert "1.5GiB" in caught.value.hint


@given(st.integers(1, 2**50))
def test_a_size_that_is_shown_can_be_typed_and_is_enough(size):
    typed = parse_size(format_size(size))
    assert size <= typed <= size * 1.1 + 1


# What is free


def test_a_containers_limit_counts_where_it_is_less_and_unused_file_pages_are_free(
    tmp_path, monkeypatch
):
    machine = namedtuple("machine", "available")(1_000_000_000)
    monkeypatch.setattr(budget.psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(budget, "resident_bytes", lambda: 10**8)

    def free():
        return (default_budget(tmp_path) - 10**8) / budget.FREE_SHARE

    assert free() == pytest.approx(1_000_000_000)
    (tmp_path / "memory.max").write_text("700000000\n")
    (tmp_path / "memory.current").write_text("600000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 400000000\n")
    assert free() == pytest.approx(500_000_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert free() == pytest.approx(1_000_000_000)


# Plans of exact search


@given(
    room=st.integers(200 * 10**6, 10**11),
    rows=st.integers(1, 10**7),
    dim=st.integers(1, 1024),
    queries=st.integers(0, 10_000),
    k=st.integers(1, 2000),
)
def test_a_plan_fits_its_budget_or_names_a_budget_that_fits(room, rows, dim, queries, k):
    size = (rows, dim, queries, k, 10**8)
    try:
        plan = plan_search(room, *size)
    except BenchError as error:
        needed = parse_size(error.hint.split()[2].rstrip(","))
        assert needed > room
        plan, room = plan_search(needed, *size), needed
    assert plan.memory_bytes <= room
    assert 1 <= plan.tile_rows <= budget.LARGEST_TILE_ROWS


def test_memory_already_in_use_counts_towards_the_budget():
    roomy, tight = (plan_search(2 * 10**9, *MARCO, 1000, 1000, held) for held in (0, 10**9))
    assert tight.tile_rows < roomy.tile_rows
    with pytest.raises(BenchError, match="in use already"):
        plan_search(resident_bytes(), *MARCO, 1000, 1000)


CHILD = """
import sys, numpy as np
from bench.evaluation.index_search import plan_search, resident_bytes
from bench.evaluation.exact import exact_search
from retrievers.index.faiss_index import import_faiss
import_faiss()
ROWS, DIM, QUERIES, K = 150_000, 64, 200, 400
class Made:
    shape = ROWS, DIM
    def tiles(self, rows):
        for start in range(0, ROWS, rows):
            count = min(rows, ROWS - start)
            yield start, np.random.default_rng(start).standard_normal((count, DIM), np.float32)
budget = resident_bytes() + int(sys.argv[1])
plan = plan_search(budget, ROWS, DIM, QUERIES, K)
queries = np.random.default_rng(0).standard_normal((QUERIES, DIM), np.float32)
exact_search(Made(), queries, K, np.arange(ROWS), tile_rows=plan.tile_rows)
peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
print(budget - peak)
"""


@pytest.mark.slow
def test_the_peak_of_a_real_search_stays_within_its_plan():
    command = [sys.executable, "-c", CHILD, str(130 * 10**6)]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(child.stdout) >= 0


# Approximate indexes


def test_an_index_that_does_not_fit_is_refused_with_its_size_and_what_would_fit():
    spec = IndexSpec.parse("HNSW32?efSearch=64")
    with pytest.raises(
        BenchError, match=r"HNSW32\?efSearch=64 .* 8,841,823 .* needs at least"
    ) as e:
        check_index_fits(spec, *MARCO, 4 * 10**9)
    needed = parse_size(e.value.hint.split()[2].rstrip(","))
    assert needed > MARCO[0] * MARCO[1] * 4
    check_index_fits(spec, *MARCO, needed + 10**8)


def test_an_unknown_index_is_refused_as_such():
    with pytest.raises(BenchError, match="cannot make"):
        check_index_fits(IndexSpec.parse("Nonsense7"), 10, 8, 10**9)
