"""The grid, the costs of settings, and the sequence of tests."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.deploying.deployment import (
    BITS,
    EXACT,
    GRAPH_DOCUMENTS,
    MISSED_STEP,
    TESTED_SHARE,
    Setting,
    choose_sequence,
    make_grid,
)
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.models.card import Compression

DIM, DOCUMENTS = 384, 20_000
GRID = make_grid(DIM, DOCUMENTS, 10)


def bytes_of(setting):
    how = setting.compression
    codes = (
        DIM // 8
        if "PQ" in setting.index.factory
        else (how.dimensions or DIM) * BITS[how.precision] / 8
    )
    links = 282 if "HNSW" in setting.index.factory else 8 if "IVF" in setting.index.factory else 0
    again = (how.rescore or 0) and DIM * (1 if how.rescore_by == "int8" else 4)
    return codes + links + again


COSTS = {one: (bytes_of(one), one.bytes_read(DOCUMENTS, DIM)) for one in (Setting(), *GRID)}


def test_the_grid_crosses_every_axis_and_leaves_out_what_has_no_effect():
    assert len(set(GRID)) == len(GRID) == 231
    plain = {(one.compression.dimensions, one.compression.precision) for one in GRID}
    assert plain == set(product((None, 192, 96, 48), BITS))
    for one in GRID:
        how = one.compression
        whole = how.dimensions is None and "PQ" not in one.index.factory
        assert not (whole and how.rescore and how.precision.startswith("float"))
    assert Setting() not in GRID
    assert len({one.name for one in GRID}) == len(GRID)


def test_a_small_collection_has_exact_search_and_no_more_candidates_than_documents():
    small = make_grid(DIM, GRAPH_DOCUMENTS - 1, 10)
    assert {one.index for one in small} == {EXACT}
    assert not any(one.compression.rescore for one in make_grid(DIM, 120, 10))
    assert {one.compression.dimensions for one in make_grid(64, 120, 10)} == {None, 32}


@pytest.mark.parametrize("documents", [5_000, 60_000, 9_000_000])
def test_faiss_makes_every_index_and_lists_are_about_four_times_the_root(documents):
    for spec in {one.index for one in make_grid(DIM, documents, 10)}:
        FaissIndex(spec, DIM)
        if spec.factory.startswith("IVF"):
            lists = int(spec.factory.split(",")[0].removeprefix("IVF"))
            assert 2 < lists / documents**0.5 < 6


@pytest.mark.parametrize(
    ("setting", "read"),
    [
        (Setting(), 1000 * 1536),
        (Setting(Compression(dimensions=96, precision="int8")), 1000 * 96),
        (Setting(Compression(precision="binary", rescore=40)), 1000 * 48 + 40 * 1536),
        (Setting(index=IndexSpec.parse("IVF10,Flat?nprobe=2")), 1000 * 1536 / 5 + 10 * 1536),
        (Setting(index=IndexSpec.parse("HNSW2?efSearch=5")), 5 * 4 * 1536),
        (Setting(index=IndexSpec.parse("IVF10,PQ48?nprobe=2")), 1000 * 48 / 5 + 10 * 1536),
    ],
    ids=lambda value: value.name if isinstance(value, Setting) else "",
)
def test_bytes_read_are_codes_of_the_searched_documents_and_candidates(setting, read):
    assert setting.bytes_read(1000, DIM) == read


def damage_of(setting, steps):
    """Damage that grows along every axis."""
    how = setting.compression
    cut, rounded = (how.dimensions or DIM), BITS.get(how.precision, 32)
    parts = (DIM / cut - 1) * steps[0], (32 / rounded - 1) / 31 * steps[1]
    total = min(sum(parts) + ("PQ" in setting.index.factory) * steps[1], 1)
    index = steps[2] * {"F": 0, "H": 1, "I": 2}[setting.index.factory[0]]
    total *= 1 if not how.rescore else 8 / how.rescore
    return min(1, total + index + 0.004 * (how.rescore_by == "int8" and bool(how.rescore)))


@given(st.tuples(*[st.floats(0.0, 0.3)] * 3), st.sampled_from([None, 100, 500]))
def test_the_sequence_is_mild_to_strong_and_short(steps, limit):
    allowed = [one for one in GRID if COSTS[one][0] <= (limit or 1e9)]
    missed = {one: damage_of(one, steps) for one in allowed}
    most = len(GRID) // TESTED_SHARE
    sequence = choose_sequence(missed, COSTS, most)
    assert 0 < len(sequence) <= most
    rounded = [round(missed[one] / MISSED_STEP) for one in sequence]
    assert rounded == sorted(rounded)
    for number, one in enumerate(sequence):
        for milder in [Setting(), *sequence[:number]]:
            assert any(a <= 0.9 * b for a, b in zip(COSTS[one], COSTS[milder], strict=True))


@given(st.tuples(*[st.floats(0.0, 0.3)] * 3), st.floats(0.005, 0.5))
def test_the_answer_is_that_of_the_whole_grid_if_losses_follow_the_missed_neighbours(
    steps, threshold
):
    missed = {one: damage_of(one, steps) for one in GRID}
    passing = [one for one in GRID if round(missed[one] / MISSED_STEP) <= threshold / MISSED_STEP]
    sequence = choose_sequence(missed, COSTS, len(GRID) // TESTED_SHARE)
    reached = [one for one in sequence if one in passing]
    assert reached == sequence[: len(reached)]
    for cost in (0, 1):
        best = min([COSTS[Setting()][cost], *(COSTS[one][cost] for one in passing)])
        found = min([COSTS[Setting()][cost], *(COSTS[one][cost] for one in reached)])
        assert found <= 2 * best  # a step of an axis halves a cost, or more
