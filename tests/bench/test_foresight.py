"""What a check could see: from stored pairs of the same kind, else from a stated constant."""

import math

import numpy as np
import pytest
from collections_for_tests import Bench, write_collection

from bench.gate.power import PESSIMISTIC, foresee, kind_of
from bench.results.find import find_results


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foresight")
    bench = Bench(folder)
    done = bench("run", write_collection(folder / "tiny"), "--model", "hashing", "bm25", "--quiet")
    assert done.code == 0, done.stderr
    return {one.result.model: one for one in find_results(bench.out)}


def test_models_of_one_form_are_siblings_and_others_are_not(stored):
    hashing, bm25 = (stored[name].result for name in ("hashing", "bm25"))
    assert kind_of(hashing, hashing) == "siblings"
    assert kind_of(hashing, bm25) == "different models"


def test_a_stored_pair_of_the_kind_gives_the_deviation(stored):
    (row,) = foresee("different models", {"tiny": stored["bm25"]}, [*stored.values()], {"tiny": 1})
    values = [one.scores()[1][one.result.main_measure] for one in stored.values()]
    expected = np.std(values[0] - values[1])
    assert row.deviation == pytest.approx(expected)
    unseen = 1 / 3  # a gain of one query that the sample missed
    assert row.detectable == pytest.approx(2.8016 * expected / math.sqrt(3) + unseen, rel=1e-3)
    assert "1 stored pair" in row.source


def test_without_a_pair_of_the_kind_a_constant_is_named(stored):
    (row,) = foresee("siblings", {"tiny": stored["bm25"]}, [*stored.values()], {"tiny": 1})
    assert row.deviation == PESSIMISTIC["siblings"]
    assert "pessimistic" in row.source


def test_the_deviation_is_of_the_measure_that_decides(stored):
    place = ({"tiny": stored["bm25"]}, [*stored.values()], {"tiny": 1})
    other = next(
        name
        for name in stored["bm25"].result.measures
        if name != stored["bm25"].result.main_measure
    )
    (row,) = foresee("different models", *place, other)
    values = [one.scores()[1][other] for one in stored.values()]
    assert row.deviation == pytest.approx(np.std(values[0] - values[1]))


def test_there_is_no_mean_where_a_baseline_is_missing(stored):
    both = {"tiny": 0.5, "absent": 0.5}
    rows = foresee("siblings", {"tiny": stored["bm25"]}, [], both)
    assert [row.name for row in rows] == ["tiny"]
    rows = foresee("siblings", dict.fromkeys(both, stored["bm25"]), [], both)
    assert [row.name for row in rows] == ["tiny", "tiny", "mean"]
