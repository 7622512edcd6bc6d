"""Pairs on a leaderboard say what ``compare`` says of the same two models."""

import msgspec
import numpy as np
import pytest

from bench.boards.assembly import Choice, assemble
from bench.boards.rows import results_in
from bench.comparing.compare import Choices, Entrant, compare
from bench.comparing.statistics import Resampling
from bench.results.find import find_results
from datasets_cfg.catalogue import expand
from foundation.errors import BenchError
from tests.support.leaderboards import MEASURE, store

FORUMS = expand(["beir/cqadupstack"])
QUICK = Resampling(resamples=499)


def board_of(place, choice):
    return assemble(results_in(place), {}, choice, QUICK)


@pytest.fixture
def results(tmp_path):
    rng = np.random.default_rng(0)
    for name in FORUMS:
        difficulty = rng.random(80)
        for model, ability in (("good", 0.1), ("close", 0.09), ("bad", 0.0)):
            scores = np.clip(difficulty + ability + rng.normal(0, 0.2, 80), 0, 1)
            values = {MEASURE: scores, "R@100": scores**2}
            store(tmp_path, model, name, values)
    store(tmp_path, "good", "alone", [0.5, 0.25])
    return tmp_path


def entrant(name, place):
    found = [one for one in find_results(place) if one.result.model == name]
    return Entrant(name, {one.collection: one for one in found})


def test_neighbours_are_each_row_with_the_next_one_of_the_headline(results):
    pairs = board_of(results, Choice(neighbours=True)).pairs
    assert [(pair.a, pair.b) for pair in pairs] == [("good", "close"), ("close", "bad")]


@pytest.mark.parametrize("pair", [("good", "bad"), ("bad", "close")])
@pytest.mark.parametrize("every", [False, True])
def test_a_pair_has_the_figures_of_compare_on_collections_and_suites(results, pair, every):
    choice = Choice(pairs=(pair,), every_measure=every)
    (found,) = board_of(results, choice).pairs
    entrants = [entrant(name, results) for name in pair]
    (expected,) = compare(entrants, Choices(resampling=QUICK))
    theirs = {row.suite: row.paired for row in expected.suites}
    theirs |= {row.collection: row.paired for row in expected.collections if row.paired}
    ours = {one.on: one for one in found.versus}
    assert list(ours) == ["beir/cqadupstack", *FORUMS]
    assert set(ours) == set(theirs)
    for place, paired in ours.items():
        mine, other = (msgspec.structs.asdict(one) for one in (paired, theirs[place]))
        assert mine == pytest.approx(other, abs=1e-9)
    holm = {row.collection: row.paired.p_adjusted for row in expected.collections if row.paired}
    assert {one.on: one.p_adjusted for one in found.versus[1:]} == pytest.approx(holm)


def test_a_suite_that_one_of_a_pair_lacks_a_member_of_is_left_out(results):
    for name in FORUMS[1:]:
        store(results, "partly", name, [0.5] * 80)
    (pair,) = board_of(results, Choice(pairs=(("good", "partly"),))).pairs
    assert [one.on for one in pair.versus] == FORUMS[1:]


def test_an_unknown_row_is_an_error_that_says_what_was_meant(results):
    with pytest.raises(BenchError, match="no row 'goood'") as caught:
        board_of(results, Choice(pairs=(("goood", "bad"),)))
    assert "good" in caught.value.hint


def test_a_row_is_not_compared_with_itself(results):
    with pytest.raises(BenchError, match="names 'good' twice"):
        board_of(results, Choice(pairs=(("good", "good"),)))
