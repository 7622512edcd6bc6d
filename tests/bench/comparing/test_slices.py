"""Slices of collections: read, computed, tested together, and part of the gate's decision."""

import itertools
import json
from xml.etree import ElementTree

import numpy as np
import pytest

import bench as api
from bench.comparing.slices import (
    QueryLabels,
    are_names,
    are_numbers,
    correct_jointly,
    find_slices,
    slice_scores,
    split_numbers,
)
from bench.comparing.statistics import Resampling, ScorePair
from bench.gate.check_record import Decision, Reason
from bench.gate.decision import GateSettings, decide_slices, smallest_shown_loss
from datasets_cfg.dataset import open_dataset
from foundation.errors import BenchError, UnavailableError
from tests.support.collections import SIXTY, Bench, with_metadata, write_collection


def make_slice(
    a: np.ndarray, b: np.ndarray, rows: np.ndarray, label: str = "", on: str = "x"
) -> ScorePair:
    return ScorePair(on, "nDCG@10", a[rows], b[rows], tuple(f"q{row}" for row in rows), label)


def random_scores(queries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    baseline = rng.random(queries)
    changed = rng.random(queries) < 0.6
    return np.clip(baseline - rng.normal(0.1, 0.3, queries) * changed, 0, 1), baseline


def brute_force(slices: list[ScorePair], queries: int, losses_only: bool) -> list[float]:
    """p of single-step maxT over all sign flips of the queries."""
    differences = np.zeros((queries, len(slices)))
    for column, one in enumerate(slices):
        rows = [int(query.removeprefix("q")) for query in one.queries]
        differences[rows, column] = one.a - one.b
    scaled = differences / (np.sqrt((differences**2).sum(axis=0)) + 0.5)
    signs = np.array(list(itertools.product((-1, 1), repeat=queries)))
    flipped, observed = signs @ scaled, scaled.sum(axis=0)
    if losses_only:
        flipped, observed = -flipped, np.maximum(-observed, 0)
    else:
        flipped, observed = np.abs(flipped), np.abs(observed)
    largest = np.maximum(flipped.max(axis=1), 0)
    shares = [np.mean(largest >= one - 1e-12) for one in observed]
    return [min(1, (1 + losses_only) * share) for share in shares]


@pytest.mark.parametrize("losses_only", [False, True])
def test_p_is_that_of_all_sign_flips_of_the_queries_also_if_slices_overlap(losses_only):
    a, b = random_scores(12, 3)
    a[:5] = b[:5] * 0.1  # one slice lost
    slices = [make_slice(a, b, np.arange(*ends)) for ends in ((0, 5), (3, 9), (9, 12), (0, 12))]
    found = correct_jointly(slices, Resampling(99_999), losses_only).p_values
    assert found == pytest.approx(brute_force(slices, 12, losses_only), abs=0.01)


def test_no_p_depends_on_a_name_or_an_order():
    scores = {name: random_scores(90, seed) for seed, name in enumerate(("x", "y", "z"))}
    parts = {name: np.array_split(np.random.default_rng(9).permutation(90), 6) for name in scores}
    slices = [
        make_slice(*scores[on], rows, str(number), on)
        for on in scores
        for number, rows in enumerate(parts[on])
    ]
    before = correct_jointly(slices, Resampling())
    rng = np.random.default_rng(1)
    order = rng.permutation(len(slices))
    names = {f"q{row}": f"query {number}" for row, number in enumerate(rng.permutation(90))}
    renamed = []
    for number in order:
        one = slices[number]
        inner = rng.permutation(len(one.queries))
        renamed.append(
            ScorePair(
                f"another {ord('z') - ord(one.on)}",
                one.measure,
                one.a[inner],
                one.b[inner],
                tuple(names[one.queries[place]] for place in inner),
                f"label {rng.random()}",
            )
        )
    after = correct_jointly(renamed, Resampling())
    assert [before.p_values[number] for number in order] == list(after.p_values)
    assert after.critical == before.critical


def test_many_slices_are_tested_with_the_same_flips_as_few(monkeypatch):
    a, b = random_scores(200, 5)
    slices = [make_slice(a, b, rows) for rows in np.array_split(np.arange(200), 20)]
    whole = correct_jointly(slices, Resampling(499)).p_values
    monkeypatch.setattr("bench.comparing.slices.COLUMNS", 3)
    assert correct_jointly(slices, Resampling(499)).p_values == whole


def test_equal_models_have_a_p_of_one_on_every_slice():
    a = np.full(40, 0.5)
    slices = [make_slice(a, a, rows) for rows in np.array_split(np.arange(40), 4)]
    assert correct_jointly(slices, Resampling(99)).p_values == (1.0,) * 4


def test_numbers_become_quartiles_and_ids_and_few_values_stay():
    values = {f"q{n}": (str(n),) for n in range(100)}
    parts = [several[0] for several in split_numbers(values).values()]
    assert [parts.count(label) for label in dict.fromkeys(parts)] == [25, 25, 25, 25]
    assert parts[0] == "0 to 24"
    assert parts[99] == "75 to 99"
    lists = split_numbers({"a": ("1", "9"), "b": ("2", "3"), "c": ("4", "5")})
    assert lists["a"] == ("1 to 2", "9")
    for texts in (("1", "2", "3", "4"), ("01", "02", "3", "4", "5"), ("1", "2", "3", "4", "five")):
        assert not are_numbers({str(n): (text,) for n, text in enumerate(texts)})
    mostly = {f"q{n}": ("1",) for n in range(90)} | {f"r{n}": (str(n),) for n in range(2, 12)}
    assert {several[0] for several in split_numbers(mostly).values()} == {"1", "2 to 11"}


def test_small_slices_are_one_and_queries_without_a_value_are_another():
    a, b = random_scores(20, 0)
    values = {f"q{n}": ("large", "both") if n < 3 else ("large",) for n in range(8)}
    values |= {"q8": ("tiny",), "q9": ("tiny",), "q10": ("small",)}
    whole = make_slice(a, b, np.arange(20))
    found = slice_scores(whole, QueryLabels(values, "without tenant"), None)
    assert {one.label: one.queries for one in found} == {
        "large": tuple(f"q{n}" for n in range(8)),
        "without tenant": tuple(f"q{n}" for n in range(11, 20)),
        "others (3 slices)": ("q0", "q1", "q2", "q8", "q9", "q10"),
    }
    assert found[0].a.tolist() == a[:8].tolist()


def test_a_slice_of_groups_has_the_means_of_the_queries_in_it():
    a, b = np.array([1.0, 0.0, 0.5, 0.2, 0.4, 0.8, 0.3]), np.zeros(7)
    queries = [f"q{n}" for n in range(7)]
    values = {f"q{n}": ("en",) for n in range(5)} | {"q5": ("de",)}
    groups = dict(zip(queries, "uuvvwwz", strict=True))
    whole = make_slice(a, b, np.arange(7))
    english = slice_scores(whole, QueryLabels(values, "-"), groups)[0]
    assert english.queries == ("u", "v", "w")
    assert english.a == pytest.approx([0.5, 0.35, 0.4])  # q5 of the third group is German


def test_values_are_metadata_or_computed_and_a_typo_is_answered(tmp_path):
    folder = with_metadata(tmp_path / "own", ["a", ["a", "b"], None])
    dataset = open_dataset(str(folder), cache_dir=tmp_path)
    opened = {"own": dataset}
    labels = find_slices("topic", opened).labels["own"]
    assert labels.values[dataset.queries.ids[1]] == ("a", "b")
    assert labels.otherwise == "without topic"
    words = find_slices("words", opened).labels["own"].values
    assert set(words.values()) == {("2",)}
    assert set(find_slices("relevant", opened).labels["own"].values.values()) == {("1",)}
    assert (
        not find_slices("collection", {"own": UnavailableError("not on this machine")})
        .labels["own"]
        .values
    )
    for typed, meant in (("topik", "topic"), ("wrods", "words")):
        with pytest.raises(BenchError) as caught:
            find_slices(typed, opened)
        assert meant in caught.value.hint
    with pytest.raises(BenchError, match="not on this machine"):
        find_slices("topic", {"own": UnavailableError("own is not on this machine")})
    plain = open_dataset(str(write_collection(tmp_path / "p", *SIXTY)), cache_dir=tmp_path)
    mixed = find_slices("topic", {**opened, "plain": plain})
    assert list(mixed.labels) == ["own"]
    assert "plain: no query has the field topic" in mixed.warnings[-1]


def test_whole_numbers_that_queries_share_are_names_and_each_is_a_slice():
    tenants = {f"q{n}": (str(1001 + n % 12),) for n in range(120)}
    assert are_numbers(tenants)
    assert are_names(tenants)
    assert not are_names({query: (f"{text}.0",) for query, (text,) in tenants.items()})
    assert not are_names({f"q{n}": (str(n // 2),) for n in range(120)})
    assert not are_names({**tenants, **{f"r{n}": (str(n),) for n in range(121)}})


@pytest.mark.parametrize(("places", "labels"), [("", "1001 1002 1003 1004 1005"), (".0", None)])
def test_ids_of_tenants_that_are_numbers_are_not_split_unless_written_as_such(
    tmp_path, places, labels
):
    written = [json.loads(f"{1001 + n % 5}{places}") for n in range(60)]
    own = open_dataset(str(with_metadata(tmp_path / "own", written)), cache_dir=tmp_path)
    found = find_slices("topic", {"own": own})
    values = {text for several in found.labels["own"].values.values() for text in several}
    if labels:
        assert values == set(labels.split())
        assert "taken for a name" in found.warnings[0]
    else:
        assert all(" to " in text or text.isdigit() for text in values)
        assert "quartiles" in found.warnings[0]


def decide_by(a, b, parts, outcome="OK", floor=0.1) -> Decision:
    slices = [make_slice(a, b, rows, str(number)) for number, rows in enumerate(parts)]
    whole = [make_slice(a, b, np.arange(len(a)))]
    return decide_slices(
        Decision(outcome=outcome, reasons=(Reason("why"),)),
        slices,
        whole,
        GateSettings(floor=floor),
        Resampling(999),
    )


@pytest.mark.slow
def test_a_slice_can_turn_a_verdict_to_regression_and_nothing_else():
    baseline = np.full(400, 0.8)
    lost = baseline.copy()
    lost[:50] = 0.1
    parts = np.array_split(np.arange(400), 8)
    for outcome in ("OK", "INCONCLUSIVE", "REGRESSION"):
        found = decide_by(lost, baseline, parts, outcome)
        assert found.outcome == "REGRESSION"
        assert found.slice_rows[0].value == "0"
        assert found.slice_rows[0].failure == found.reasons[-1].what
        assert (found.reasons[-1].value, round(found.reasons[-1].loss, 9)) == ("0", 0.7)
        assert "lost 0.7000" in found.slice_rows[0].failure
        assert [bool(row.failure) for row in found.slice_rows].count(True) == 1
    assert decide_by(lost, baseline, parts, "MISSING").outcome == "MISSING"
    gained = decide_by(baseline, lost, parts, "INCONCLUSIVE")
    assert (gained.outcome, gained.reasons) == ("INCONCLUSIVE", (Reason("why"),))
    small_loss = np.where(np.arange(400) < 50, 0.75, 0.8)
    assert decide_by(small_loss, baseline, parts).outcome == "OK"  # within the floor


def test_a_slice_too_small_to_show_a_loss_is_not_examined_and_makes_nothing_inconclusive():
    baseline = np.full(200, 0.4)
    lost = baseline.copy()
    lost[:7] = 0.0
    found = decide_by(lost, baseline, [np.arange(7), np.arange(7, 200)])
    assert found.outcome == "OK"
    small, large = found.slice_rows
    assert "7 queries show no loss" in small.unexamined
    assert not large.unexamined


@pytest.mark.slow
@pytest.mark.parametrize("queries", [8, 15, 40, 100])
def test_no_smaller_loss_than_the_smallest_shown_one_is_a_regression(queries):
    """If all queries of a slice lose as much, which is easiest to show."""
    rng, baseline = np.random.default_rng(0), np.ones(queries + 100)
    candidate = baseline.copy()
    candidate[queries:] -= 0.3 * rng.random(100) * rng.choice([0, 1], 100)
    baseline[queries:] -= 0.3 * rng.random(100) * rng.choice([0, 1], 100)
    parts = [np.arange(queries), *np.array_split(np.arange(queries, queries + 100), 5)]
    for loss in np.arange(0.05, 1, 0.05):
        candidate[:queries] = 1 - loss
        row = next(r for r in decide_by(candidate, baseline, parts).slice_rows if r.value == "0")
        if row.failure:
            assert row.shows_from is not None
            assert loss >= row.shows_from - 1e-9


def test_the_bound_of_the_smallest_shown_loss_is_that_of_equal_losses():
    from bench.gate.decision import LOWER_LEVEL, draw_means, upper_bound

    for queries in (10, 30):
        loss = smallest_shown_loss(queries, 0.0, 0.0)
        for factor, shown in ((0.97, False), (1.03, True)):
            gains = draw_means(np.full(queries, -loss * factor))
            assert (upper_bound([gains], level=LOWER_LEVEL) < 0) == shown


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[Bench, object, tuple[object, ...]]:
    """Results of two models on a collection of two tenants, and further queries."""
    bench = Bench(tmp_path_factory.mktemp("compared"))
    folder = with_metadata(bench.place / "own", ["acme", "acme", ["acme", "zeta"], None])
    assert bench("run", folder, "--model", "bm25", "hashing").code == 0
    return bench, folder, ("--results", bench.out, "--cache-dir", bench.cache)


@pytest.mark.slow
def test_compare_and_check_have_a_row_for_each_slice(compared, tmp_path):
    bench, folder, places = compared
    typed = ("compare", "hashing", "bm25", "--by", "topic", *places)
    document = json.loads(bench(*typed, "--json").stdout)
    rows = document["slices"][0]["slices"]
    assert {row["value"]: row["queries"] for row in rows} == {
        "acme": 45,
        "zeta": 15,
        "without topic": 15,
    }
    assert [row["paired"]["difference"] for row in rows] == sorted(
        row["paired"]["difference"] for row in rows
    )
    figure = tmp_path / "slices.svg"
    printed = bench(*typed, "--figure", figure).stdout
    assert "Slices by topic, hashing − bm25" in printed
    assert "acme" in figure.read_text()
    report = api.compare("hashing", "bm25", by="topic", results=bench.out, cache_dir=bench.cache)
    assert report.slices["topic"].tolist() == [row["value"] for row in rows]

    junit = tmp_path / "verdict.xml"
    typed = ("check", "hashing", "--baseline", "bm25", "--on", folder, "--by", "topic", *places)
    done = bench(*typed, "--json", "--junit", junit)
    rows = json.loads(done.stdout)["slices"]
    assert [row["value"] for row in rows if not row["unexamined"]]
    names = {case.get("name") for case in ElementTree.parse(junit).iter("testcase")}
    assert {f"own topic={row['value']}" for row in rows} <= names
    assert "### Slices by topic" in bench(*typed).stdout
    result = api.check(
        "hashing", baseline="bm25", on=folder, by="topic", results=bench.out, cache_dir=bench.cache
    )
    assert result.slices["topic"].tolist() == [row["value"] for row in rows]


@pytest.mark.slow
def test_compare_and_check_test_groups(compared):
    bench, folder, places = compared
    on = ("--on", folder, "--group", "source", "--json")
    found = bench("check", "hashing", "--baseline", "bm25", *on, *places)
    row = json.loads(found.stdout)["rows"][0]["paired"]
    assert row["wins"] + row["ties"] + row["losses"] == 3
    assert "means of 3 groups by source are compared" in found.stdout
    (pair,) = json.loads(bench("compare", "hashing", "bm25", *on, *places).stdout)["comparisons"]
    assert pair["collections"][0]["queries"] == 3
