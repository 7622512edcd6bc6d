"""A leaderboard puts side by side what compares, and nothing else; gaps stay gaps."""

import hashlib

import msgspec
import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from bench.boards.leaderboard import build_leaderboard
from bench.boards.leaderboard_record import Leaderboard
from bench.boards.rows import assign_groups, find_distinct_results
from bench.comparing.sign_flips import flip_means
from bench.comparing.statistics import (
    holm,
)
from bench.evaluation.result_record import Timings
from bench.requests.deciding import LeaderboardRequest
from datasets_cfg.catalogue import expand_names
from foundation.errors import BenchError
from retrievers.models.card import Card, Prompts
from tests.support.examples import with_examples
from tests.support.leaderboards import MEASURE, make_protocol, recipe_of, store
from tests.support.results import RESULT

PLAIN = LeaderboardRequest()
FORUMS = expand_names(["beir/cqadupstack"])


def board_of(
    place, request: LeaderboardRequest = PLAIN, cards: dict[str, Card] | None = None
) -> Leaderboard:
    request = evolve(request, resamples=199)
    return build_leaderboard(find_distinct_results(place), cards or {}, request)


def row_of(board: Leaderboard, name: str):
    return next(row for row in board.rows if row.name == name)


def names(board: Leaderboard) -> list[str]:
    return [row.name for row in board.rows]


def test_an_unofficial_collection_counts_in_no_mean(tmp_path):
    for number, name in enumerate(FORUMS):
        protocol = make_protocol(name, official=number > 0)
        store(tmp_path, "a", name, [0.5], protocol=protocol)
    board = board_of(tmp_path, LeaderboardRequest(suite="beir/cqadupstack"))
    assert row_of(board, "a").means["beir/cqadupstack"][MEASURE].missing == (FORUMS[0],)


def test_different_protocols_have_columns_of_their_own_and_the_declared_one_the_plain_name(
    tmp_path,
):
    name = "beir/scifact"
    late = {"time": "2026-02-01T00:00:00+00:00"}
    store(tmp_path, "a", name, [0.5, 0.5])
    store(
        tmp_path, "a", name, [0.25, 0.25], protocol=make_protocol(name, depth=10), conditions=late
    )
    board = board_of(tmp_path)
    main, other = board.columns
    assert (main.name, main.main) == (name, True)
    assert (other.name, other.main, other.collection) == (f"{name}@depth=10", False, name)
    assert names(board) == ["a"]
    assert row_of(board, "a").score(name, MEASURE).value == 0.5
    assert row_of(board, "a").score(f"{name}@depth=10", MEASURE).value == 0.25


def test_of_undeclared_protocols_the_newest_has_the_plain_name_unless_it_is_not_official(tmp_path):
    for year, depth, official in ((2024, 10, True), (2025, 20, True), (2026, 30, False)):
        protocol = make_protocol("mine", depth=depth, official=official)
        conditions = {"time": f"{year}-01-01T00:00:00+00:00"}
        store(tmp_path, "a", "mine", [0.5], protocol=protocol, conditions=conditions)
    columns = board_of(tmp_path).columns
    assert columns[0].protocol["depth"] == "20"
    assert {column.name for column in columns[1:]} == {
        "mine@depth=10",
        "mine@depth=30@official=False",
    }


def test_a_run_file_scored_without_its_corpus_is_compared_with_models_on_that_corpus(tmp_path):
    bare = make_protocol("set", corpus_sha256="")
    store(tmp_path, "a", "set", [0.5, 0.5])
    store(tmp_path, "theirs", "set", [0.5, 0.0], protocol=bare, recipe=None, index="")
    board = board_of(tmp_path)
    assert [column.name for column in board.columns] == ["set"]
    assert row_of(board, "theirs").score("set", MEASURE).value == 0.25


@pytest.mark.parametrize(
    ("first", "second", "labels"),
    [
        (
            {"recipe": recipe_of("a", max_document_tokens=128)},
            {"recipe": recipe_of("a", max_document_tokens=512)},
            ["a@max_document_tokens=128", "a@max_document_tokens=512"],
        ),
        (
            {"recipe": recipe_of("a", prompts=Prompts(query="find: "))},
            {"recipe": recipe_of("a", prompts=Prompts(query="query: "))},
            ["a@prompts.query=find: ", "a@prompts.query=query: "],
        ),
        (
            {"recipe": recipe_of("a"), "tokens_sha256": "a" * 64},
            {"recipe": recipe_of("a"), "tokens_sha256": "b" * 64},
            [f"a@tokens={'a' * 12}", f"a@tokens={'b' * 12}"],
        ),
    ],
)
def test_two_recipes_of_a_model_have_rows_that_name_what_differs(tmp_path, first, second, labels):
    store(tmp_path, "a", "set", [0.25], **first)
    store(tmp_path, "a", "set", [0.5], **second)
    board = board_of(tmp_path)
    assert names(board) == labels
    assert [row_of(board, name).score("set", MEASURE).value for name in labels] == [0.25, 0.5]


def test_prompts_that_depend_on_the_collection_do_not_split_a_row(tmp_path):
    for name in ("one", "two"):
        recipe = recipe_of("a", prompts=Prompts(query=f"{name}: "))
        store(tmp_path, "a", name, [0.5], recipe=recipe)
    board = board_of(tmp_path)
    assert names(board) == ["a"]
    assert "prompts.query" not in board.rows[0].recipe


def test_of_repeated_evaluations_the_newest_counts_with_a_warning_if_scores_differ(
    tmp_path, caplog
):
    for machine, month, score in (("y", 2, 0.25), ("x", 1, 0.5)):
        conditions = {"time": f"2026-0{month}-01T00:00:00+00:00", "machine": machine}
        store(tmp_path / machine, "a", "set", [score], conditions=conditions)
    board = board_of(tmp_path)
    assert (names(board), board.results) == (["a"], 1)
    assert board.rows[0].score("set", MEASURE).value == 0.25
    assert "2 times with different scores" in caplog.text


def test_speed_is_that_of_the_evaluation_that_encoded_most(tmp_path):
    spent = Timings(encode_queries_s=1.0, encode_documents_s=9.0, encoded_tokens=1000)
    more = Timings(encode_documents_s=10.0, encoded_tokens=3000)
    other = Timings(encode_documents_s=0.5, encoded_tokens=2000)
    store(tmp_path, "a", "one", [0.5], timings=spent)
    store(tmp_path, "a", "two", [0.5], timings=more)
    store(tmp_path, "a", "three", [0.5], timings=other, conditions={"device": "cuda"})
    store(tmp_path, "a", "four", [0.5], timings=Timings(encode_documents_s=5.0))
    (row,) = board_of(tmp_path).rows
    assert row.tokens_per_s == 300.0
    assert row.speed_device == "Linux x86_64, cpu, 2 cores available"
    assert row.cells["one"].tokens_per_s == 100.0
    assert row.cells["four"].tokens_per_s is None


def test_the_interval_of_a_suite_resamples_within_each_member(tmp_path):
    rng = np.random.default_rng(0)
    drawn = {name: rng.random(200) for name in FORUMS}
    for name, scores in drawn.items():
        store(tmp_path, "a", name, scores)
    request = LeaderboardRequest(resamples=2000)
    board = build_leaderboard(find_distinct_results(tmp_path), {}, request)
    score = row_of(board, "a").score("beir/cqadupstack", MEASURE)
    error = np.sqrt(sum(scores.var() / 200 for scores in drawn.values())) / 12
    assert score.value == pytest.approx(np.mean([scores.mean() for scores in drawn.values()]))
    assert score.high - score.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert score.group == 1


def test_too_few_resamples_to_tell_so_many_models_apart_are_refused(tmp_path):
    for model in range(6):
        store(tmp_path, f"m{model}", "set", [model / 10] * 99)
    stored = find_distinct_results(tmp_path)
    with pytest.raises(BenchError, match="none of 5 tests") as caught:
        build_leaderboard(stored, {}, LeaderboardRequest(resamples=98))
    assert "--resamples 99" in caught.value.hint


def by_pairs(scores: np.ndarray, flipped: np.ndarray) -> list[int]:
    """The definition, one pair at a time."""
    rest = sorted(range(scores.shape[1]), key=lambda model: -scores[:, model].mean())
    found, group = {}, 0
    while rest:
        leader, rest, group = rest[0], rest[1:], group + 1
        found[leader] = group
        behind = [(scores[:, leader] - scores[:, model]).mean() - 1e-11 for model in rest]
        apart = [np.abs(flipped[:, leader] - flipped[:, model]) for model in rest]
        p_values = [
            (1 + (one >= far).sum()) / (1 + len(flipped))
            for one, far in zip(apart, behind, strict=True)
        ]
        worse = [p <= 0.05 for p in holm(p_values)]
        cut = worse.index(True) if True in worse else len(rest)
        found |= dict.fromkeys(rest[:cut], group)
        rest = rest[cut:]
    return [found[model] for model in range(scores.shape[1])]


@with_examples(12)
@given(seed=st.integers(0, 2**32 - 1), models=st.integers(2, 8))
def test_groups_are_what_testing_pair_by_pair_gives(seed, models):
    rng = np.random.default_rng(seed)
    scores = rng.random((60, 1)) + rng.normal(0, 0.2, (60, models)) + rng.normal(0, 0.05, models)
    flipped = flip_means(scores, 499, rng)
    assert assign_groups(scores.mean(axis=0), flipped) == by_pairs(scores, flipped)


def test_the_headline_is_the_first_complete_suite_or_else_the_fullest_column(tmp_path):
    store(tmp_path, "a", "alone", [0.5])
    store(tmp_path, "a", FORUMS[0], [0.5])
    store(tmp_path, "b", FORUMS[0], [0.5])
    assert board_of(tmp_path).headline("").name == FORUMS[0]
    for name in FORUMS[1:]:
        store(tmp_path, "a", name, [0.5])
    assert board_of(tmp_path).headline("").name == "beir/cqadupstack"


def test_a_suite_of_collections_with_other_main_measures_has_none_of_its_own(tmp_path):
    for number, name in enumerate(FORUMS):
        first, second = (MEASURE, "R@100") if number else ("R@100", MEASURE)
        store(tmp_path, "a", name, {first: [0.5], second: [0.25]})
    board = board_of(tmp_path)
    (suite,) = board.suites
    assert suite.main_measure == ""
    assert row_of(board, "a").score(suite.name, MEASURE).value == pytest.approx(
        (11 * 0.5 + 0.25) / 12
    )


def test_only_a_declared_collection_is_called_published(tmp_path):
    for name in ("mine", "beir/scifact"):
        store(tmp_path, "a", name, [0.5])
    store(tmp_path, "a", "changed", [0.5], protocol=make_protocol("changed", official=False))
    shown = {one.name: one.protocol.get("official") for one in board_of(tmp_path).columns}
    assert shown == {"mine": None, "beir/scifact": "True", "changed": "False"}


def test_labels_of_columns_are_short_and_unique(tmp_path):
    hashes = {"queries_sha256": "1" * 64, "qrels_sha256": "2" * 64}
    for split, changes in (("dev", {}), ("dl19", hashes), ("dl20", {"qrels_sha256": "3" * 64})):
        protocol = make_protocol("my-docs", split=split, **changes)
        store(tmp_path, "a", "my-docs", [0.5], protocol=protocol)
    for changes in ({}, {"depth": 10}, {"qrels_sha256": "4" * 64}):
        protocol = make_protocol("beir/scifact", **changes)
        store(tmp_path, "a", "beir/scifact", [0.5], protocol=protocol)
    columns = board_of(tmp_path).columns
    labels = {column.label for column in columns if column.collection == "my-docs"}
    assert labels == {"my-docs@split=dev", "my-docs@split=dl19", "my-docs@split=dl20"}
    others = [column.label for column in columns if column.collection == "beir/scifact"]
    assert len(set(others)) == 3
    assert "beir/scifact" in others
    assert max(map(len, others)) < 60
    assert any("queries_sha256" in column.name for column in columns)  # the full name is kept


def test_rows_are_compared_with_a_baseline_as_compare_and_check_do(tmp_path):
    rng = np.random.default_rng(0)
    scores = {name: rng.random(60) for name in ("base", "other")}
    scores["worse"] = scores["base"] * 0.5
    for name, values in scores.items():
        store(tmp_path, name, "one", values)
    store(tmp_path, "base", "two", [0.5] * 20)
    store(tmp_path, "worse", "two", [0.5] * 20)
    board = board_of(tmp_path, LeaderboardRequest(baseline=("base",)))
    assert board.baselines == ("base",)
    contrast = board.contrasts_of("worse")["base"]
    found = contrast.on("one", MEASURE)
    assert found.paired.difference == pytest.approx((scores["worse"] - scores["base"]).mean())
    assert (found.verdict, contrast.outcome) == ("b", "REGRESSION")
    assert contrast.on("two", MEASURE).verdict == "neither"
    missing = board.contrasts_of("other")["base"]
    assert (missing.outcome, *map(str, missing.reasons)) == ("MISSING", "two: no result")
    assert not board.contrasts_of("base")


def test_older_results_of_a_collection_that_nobody_published_keep_their_key():
    """They state ``official: true``, which is neither true nor false."""
    older = msgspec.json.encode({**msgspec.to_builtins(make_protocol("mine")), "official": True})
    read = msgspec.json.decode(older, type=type(make_protocol("mine")))
    assert read.official is None
    assert read == make_protocol("mine")
    content = msgspec.json.encode((RESULT.fingerprint, msgspec.Raw(older), RESULT.index))
    key = hashlib.sha256(content).hexdigest()[:12]
    assert msgspec.structs.replace(RESULT, protocol=read).key == key
