"""Published scores are strict data with a source, and stay apart from what was measured."""

import pytest

from bench.boards.leaderboard import build_leaderboard, list_claims, read_publications
from bench.boards.rows import find_distinct_results
from bench.evaluation.scoring import parse_measure
from bench.requests.deciding import LeaderboardRequest
from datasets_cfg.catalogue import dataset_names, expand_names, suite_names
from foundation.errors import BenchError
from retrievers.models.card import Card, ExpectedScore
from tests.support.leaderboards import MEASURE, store

FORUMS = expand_names(["beir/cqadupstack"])
EVERY = [(name, one) for name, own in read_publications().items() for one in list_claims(own)]


def board_of(place, published, cards=None, **choices):
    request = LeaderboardRequest(published=published, resamples=199, **choices)
    return build_leaderboard(find_distinct_results(place), cards or {}, request)


def test_every_claim_is_on_a_known_collection_by_a_known_measure_with_an_address():
    known = {*dataset_names(), *suite_names()}
    assert len(EVERY) > 500
    for name, claim in EVERY:
        assert claim.name in known, (name, claim)
        assert parse_measure(claim.measure).name == claim.measure
        assert claim.source.startswith("https://"), (name, claim)
        assert 0 < claim.value < 1


@pytest.mark.parametrize("name", read_publications())
def test_each_publication_states_a_score_once(name):
    keys = [(one.model, one.name, one.measure, one.source) for key, one in EVERY if key == name]
    assert len(keys) == len(set(keys))


def test_a_score_above_1_is_refused_by_name(tmp_path):
    (tmp_path / "bad.toml").write_text(
        'title = "t"\nsource = "s"\n[[systems]]\nname = "n"\n'
        '[systems.scores."RR@10"]\n"msmarco/dev" = 38.2'
    )
    with pytest.raises(BenchError, match=r"is 38\.2: ") as caught:
        read_publications(tmp_path)
    assert "bad.toml" in str(caught.value)


def test_claims_stand_beside_rows_on_request_and_change_no_measured_value(tmp_path):
    for model, score in (("a", 0.5), ("b", 0.25)):
        for name in FORUMS:
            store(tmp_path, model, name, [score] * 60)
    plain, shown = (board_of(tmp_path, names) for names in (None, ()))
    assert (plain.claims, plain.published, plain.systems()) == ((), False, [])
    assert shown.rows == plain.rows
    assert shown.headline("") == plain.headline("")
    assert {claim.publication for claim in shown.claims} >= {"DupMAE paper", "MTEB results"}
    assert {suite.name for suite in shown.suites} >= {"beir/cqadupstack", "beir-18"}
    assert all(row.means["beir-18"][MEASURE].score is None for row in shown.rows)


def test_a_system_of_a_publication_never_claims_for_a_row_of_its_name(tmp_path):
    store(tmp_path, "DupMAE", "beir/scifact", [0.5])
    board = board_of(tmp_path, ("dupmae",))
    assert board.rows[0].score("beir/scifact", MEASURE).published is None
    assert "DupMAE" in [some[0].model for some in board.systems()]


def test_systems_are_told_apart_by_their_source_and_rows_are_none(tmp_path):
    """A card of a model with a row and another card claim something."""
    store(tmp_path, "a", "beir/scifact", [0.5])
    claim = ExpectedScore(dataset="beir/scifact", measure=MEASURE, value=0.6, source="a paper")
    names = ("a", "other")
    cards = {name: Card(name=name, title="t", missing="x", expected=(claim,)) for name in names}
    board = board_of(tmp_path, (), cards)
    assert board.rows[0].score("beir/scifact", MEASURE).published == 0.6
    found = [(some[0].model, some[0].source) for some in board.systems()]
    assert ("other", "a paper") in found
    assert "a" not in [name for name, _ in found]
    assert len([name for name, _ in found if name == "BM25"]) == 2
    assert len(found) == len(set(found))
