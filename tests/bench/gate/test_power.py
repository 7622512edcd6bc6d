"""What a check could see: from stored pairs with the baseline, else from a stated constant."""

import math

import numpy as np
import pytest
from scipy import stats

from bench.gate.power import PESSIMISTIC, detectable_effects, relation_between
from bench.result_store.find import find_results
from tests.support.collections import Bench, write_collection, write_hashing_card

WORDS = [f"word{chr(97 + i)}{chr(97 + j)}" for i in range(5) for j in range(8)]
DOCUMENTS, QUERIES = 200, 80
MEASURES = ("--measure", "RR@5")
# Prompts of words that documents have change rankings.
PROMPTS = {
    "base": "wordaa ",
    "first": "wordba ",
    "second": "wordca ",
    "third": "wordda ",
    "copy": "wordaa ",
    "broken": " ".join(3 * WORDS) + " ",
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Results by model: a baseline, three siblings, a copy, a broken one, and BM25."""
    place = tmp_path_factory.mktemp("power")
    rng = np.random.default_rng(0)
    texts = {f"d{i:03}": ("", " ".join(rng.choice(WORDS, 8).tolist())) for i in range(DOCUMENTS)}
    queries = {f"q{i:02}": " ".join(texts[f"d{i:03}"][1].split()[:3]) for i in range(QUERIES)}
    qrels = {(f"q{i:02}", f"d{i:03}"): 1 for i in range(QUERIES)}
    folder = write_collection(place / "tiny", texts, queries, qrels)
    bench = Bench(place)
    for name, prompt in PROMPTS.items():
        join = "none" if name == "copy" else "space"  # no document has a title
        fields = {"similarity": "cos", "title_join": join, "prompts.query": prompt}
        card = write_hashing_card(place / f"{name}.toml", 256, **fields)
        done = bench("run", folder, "--model", card, *MEASURES)
        assert done.code == 0, done.stderr
    assert bench("run", folder, "--model", "bm25", *MEASURES).code == 0
    return {one.result.model: one for one in find_results(bench.out)}


def effect(stored, kind: str, *names: str, **options: object):
    """What is stated beforehand where only these and the baseline are stored."""
    known = [stored[name] for name in ("base", *names)]
    (found,) = detectable_effects(kind, {"tiny": stored["base"]}, known, {"tiny": 1}, **options)
    return found


def deviation(stored, name: str, measure: str = "nDCG@10") -> float:
    ids, values = stored[name].scores.query_ids, stored[name].scores.values
    base_ids, base = stored["base"].scores.query_ids, stored["base"].scores.values
    assert ids == base_ids
    return float((values[measure] - base[measure]).std(ddof=1))


def test_models_of_one_form_are_siblings_and_others_are_not(stored):
    base = stored["base"].result
    assert relation_between(base, stored["third"].result) == "siblings"
    assert relation_between(base, stored["bm25"].result) == "different models"


def test_a_stored_pair_with_the_baseline_gives_the_deviation(stored):
    found = effect(stored, "different models", "bm25", floor=1.0)
    expected = deviation(stored, "bm25")
    assert found.deviation == pytest.approx(expected)
    quantiles = stats.t.ppf([0.975, 0.8], QUERIES - 1).sum()
    unseen = 1 / QUERIES  # a gain of one query that the sample missed
    assert found.detectable == pytest.approx(quantiles * expected / math.sqrt(QUERIES) + unseen)
    assert found.source == "1 stored pair (different models): base with bm25"


def test_the_median_of_the_pairs_counts_and_all_are_named(stored):
    found = effect(stored, "siblings", "third", "first", "second", "bm25")
    each = [deviation(stored, name) for name in ("first", "second", "third")]
    assert len(set(each)) == 3
    assert found.deviation == pytest.approx(np.median(each))
    assert "the median of 3 stored pairs (siblings): base with" in found.source
    assert all(name in found.source for name in ("first", "second", "third"))


def test_neither_a_copy_of_the_baseline_nor_a_broken_model_changes_the_estimate(stored):
    alone = effect(stored, "siblings", "second")
    found = effect(stored, "siblings", "second", "copy", "broken")
    assert found.detectable == alone.detectable
    assert "left out: " in found.source
    assert "copy (fewer than 10 queries differ)" in found.source
    assert "broken (" in found.source
    assert ", more than the floor)" in found.source


@pytest.mark.parametrize("name", ["copy", "broken"])
def test_a_copy_or_a_broken_model_alone_leaves_the_pessimistic_constant(stored, name):
    found = effect(stored, "siblings", name)
    assert found.deviation == PESSIMISTIC["siblings"]
    assert "pessimistic" in found.source
    assert name in found.source


def test_models_without_the_baseline_are_not_a_pair(stored):
    base = stored["base"]
    others = [stored[name] for name in ("first", "third")]
    (found,) = detectable_effects("siblings", {"tiny": base}, others, {"tiny": 1})
    assert found.deviation == pytest.approx(
        np.median([deviation(stored, "first"), deviation(stored, "third")])
    )
    (found,) = detectable_effects("different models", {"tiny": base}, others, {"tiny": 1})
    assert found.deviation == PESSIMISTIC["different models"]


def test_there_is_no_mean_where_a_baseline_is_missing(stored):
    both = {"tiny": 0.5, "absent": 0.5}
    rows = detectable_effects("siblings", {"tiny": stored["base"]}, [], both)
    assert [row.name for row in rows] == ["tiny"]
    rows = detectable_effects("siblings", dict.fromkeys(both, stored["base"]), [], both)
    assert [row.name for row in rows] == ["tiny", "tiny", "mean"]
