"""Stored results beside each other: found, chosen, put on the same queries, compared."""

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.comparing.pairs import (
    ComparedModel,
    Comparison,
    ComparisonRow,
    ComparisonSettings,
    compare_models,
)
from bench.comparing.statistics import Resampling, holm
from bench.evaluation.judging import suite_mean
from bench.evaluation.result_record import Evaluation, Result
from bench.evaluation.runs import Run
from bench.evaluation.scoring import Scores
from bench.result_store import find
from bench.result_store.result import RESULT_FILE, save
from datasets_cfg.catalogue import expand_names
from foundation.errors import BenchError
from retrievers.models.card import Prompts, Recipe
from tests.support import results as records

PROTOCOL = msgspec.structs.replace(records.PROTOCOL, collection="beir/scifact", official=True)
RECIPE = Recipe(model="words", kind="hashing", dim=8)
FAST = ComparisonSettings(resampling=Resampling(resamples=999))


def results_of(name, root, on=None):
    """Results of what a user named, one for each collection, all of one recipe."""
    return find.choose_results(name, find.find_named(name, root), on)


def result(model="words", collection="beir/scifact", recipe=RECIPE, index="flat", **protocol):
    about = msgspec.structs.replace(PROTOCOL, collection=collection, **protocol)
    return msgspec.structs.replace(
        records.RESULT,
        model=model,
        index=index,
        protocol=about,
        recipe=recipe,
        fingerprint=recipe.fingerprint if recipe else "a" * 64,
    )


def stored(root: Path, one: Result, values=(0.0, 0.5, 1.0), names=None, measure="nDCG@10") -> Path:
    names = names or [f"q{number}" for number in range(len(values))]
    run = Run.from_rows(names, ["d1"] * len(names), np.ones(len(names)))
    scores = Scores(tuple(names), {measure: np.array(values)}, 0, 0)
    one = msgspec.structs.replace(
        one, measures={measure: scores.mean(measure)}, main_measure=measure, queries=len(names)
    )
    return save(Evaluation(one, scores, run), root).folder


def entry(
    values, names=None, main="nDCG@10", measures=("nDCG@10",), recipe=None, index="", **protocol
):
    """An evaluation that was not stored, as that of a run file is."""
    names = tuple(names or (f"q{number}" for number in range(len(values))))
    about = msgspec.structs.replace(PROTOCOL, **protocol)
    done = records.evaluation(
        dict.fromkeys(measures, values), names, protocol=about, recipe=recipe, index=index
    )
    return replace(
        done, record=msgspec.structs.replace(done.record, main_measure=main, measures={main: 0.5})
    )


def model(name, seed=0, collections=("beir/scifact",), queries=30, shift=0.0, **fields):
    rng = np.random.default_rng(seed)
    made = {
        collection: entry(rng.random(queries).round(1) + shift, collection=collection, **fields)
        for collection in collections
    }
    return ComparedModel(name, made)


def only(comparisons: list[Comparison]) -> ComparisonRow:
    ((row,),) = [comparison.collections for comparison in comparisons]
    return row


# Finding and choosing


HALF = msgspec.structs.replace(RECIPE, dtype="float16")


def test_results_are_found_below_a_folder_and_told_apart_by_model(tmp_path):
    models = ("words", "more-words", "a/words", "a")
    for name in models:
        stored(tmp_path, result(name))
    assert len(find.find_results(tmp_path)) == 4
    for name in models:
        (found,) = find.find_results(tmp_path, name)
        assert found.record.model == name
    assert find.find_results(tmp_path / "absent") == []


def test_different_evaluations_of_a_collection_are_listed_with_what_differs(tmp_path):
    for recipe in (RECIPE, HALF):
        stored(tmp_path, result(recipe=recipe))
    with pytest.raises(BenchError) as error:
        results_of("words", tmp_path)
    message = str(error.value)
    assert "words has 2 results, which differ in dtype" in message
    assert "dtype: float32, float16" in message
    assert "'words@dtype=float32' or 'words@dtype=float16'" in error.value.hint


QUERY_PROMPT = msgspec.structs.replace(RECIPE, prompts=Prompts(query="query: "))


@pytest.mark.parametrize(
    ("other", "condition"),
    [
        ({"recipe": HALF}, "dtype=float16"),
        ({"index": "IVF64,Flat?nprobe=8"}, "index=IVF64,Flat?nprobe=8"),
        ({"depth": 100}, "depth=100"),
        ({"split": "dev"}, "split=dev"),
        ({"recipe": QUERY_PROMPT}, "prompts.query=query: "),
    ],
)
def test_one_of_several_evaluations_is_named_by_a_field_by_key_or_by_folder(
    other, condition, tmp_path
):
    stored(tmp_path, result())
    wanted = result(**other)
    folder = stored(tmp_path, wanted)
    names = [f"words@{wanted.key}", f"words@{wanted.key[:7]}", str(folder)]
    names += [str(folder / RESULT_FILE), f"words@{condition}", f"words@{condition}@{wanted.key}"]
    for name in names:
        (found,) = results_of(name, tmp_path).values()
        assert found.record.key == wanted.key


@pytest.mark.parametrize("condition", ["nothing=at all", "typo="])
def test_a_condition_that_no_result_meets_is_refused(condition, tmp_path):
    stored(tmp_path, result())
    with pytest.raises(BenchError, match=f"no result of words has {condition}"):
        results_of(f"words@{condition}", tmp_path)


def test_results_of_an_approximate_index_do_not_affect_other_checks(tmp_path, capsys):
    exact, trial = stored(tmp_path, result()), result(index="HNSW32")
    stored(tmp_path, trial)
    (found,) = results_of("words", tmp_path).values()
    assert found.folder == exact
    note = capsys.readouterr().err
    assert note.startswith("note: using the results of exact search of words")
    (name,) = re.findall(r"'(.*?)'", note)
    assert results_of(name, tmp_path)["beir/scifact"].record.index == "HNSW32"
    stored(tmp_path, result(index="HNSW32", collection="beir/nfcorpus"))
    with pytest.raises(BenchError, match="which differ in index"):
        results_of("words", tmp_path)


# Comparing


def test_figures_of_two_models_do_not_depend_on_what_else_is_compared():
    alone = compare_models([model("a", 1), model("b", 2)], FAST)
    more = ("beir/nfcorpus", "beir/scifact")
    together = compare_models([model("c", 3, more), model("a", 1), model("b", 2)], FAST)
    one, other_ = only(alone[:1]).paired, together[2].collections[0].paired
    assert one == msgspec.structs.replace(other_, p_adjusted=one.p_adjusted)


def test_values_are_matched_by_query_not_by_position():
    names = [f"q{number}" for number in range(30)]
    values = np.random.default_rng(3).random(30)
    order = np.random.default_rng(4).permutation(30)
    first = ComparedModel("a", {"beir/scifact": entry(values, names)})
    shuffled = entry(values[order], [names[place] for place in order])
    row = only(compare_models([first, ComparedModel("b", {"beir/scifact": shuffled})], FAST))
    assert (row.paired.changed, row.paired.p, row.verdict) == (0, 1.0, "neither")


def test_equal_scores_have_equal_figures_whatever_the_collection_is_called():
    names = ("beir/nfcorpus", "beir/scifact")
    values = [np.random.default_rng(seed).random(40) for seed in (1, 2)]
    models = [
        ComparedModel(name, {key: entry(value, collection=key) for key in names})
        for name, value in zip("ab", values, strict=True)
    ]
    (found,) = compare_models(models, FAST)
    one, other_ = (row.paired for row in found.collections)
    assert msgspec.structs.replace(one, on=other_.on) == other_


def corrected(found: list[Comparison]) -> list[ComparisonRow]:
    rows = [row for one in found for row in one.collections]
    plain = [row.paired.p for row in rows]
    adjusted = [row.paired.p_adjusted for row in rows]
    assert adjusted == holm(plain) != plain
    return rows


def test_p_is_corrected_over_the_collections_and_over_all_pairs_of_models():
    names = expand_names(["beir/cqadupstack"])
    models = [model(name, seed, names, shift=0.06 * seed) for seed, name in enumerate("abc")]
    found = compare_models(models, FAST)
    assert [one.pairs for one in found] == [3, 3, 3]
    rows = corrected(found)
    assert len(rows) == 3 * len(names)
    means = [one.suites[0] for one in found]
    assert [row.paired.p_adjusted for row in means] == holm([row.paired.p for row in means])
    for row in (*rows, *means):
        assert (row.verdict == "neither") == (row.paired.p_adjusted > 0.05)
    (alone,) = compare_models(models[:2], FAST)
    assert len(corrected([alone])) == len(names)
    assert alone.suites[0].paired.p_adjusted is None


def test_a_collection_that_one_model_lacks_is_a_gap_and_counts_in_no_correction():
    models = [model("a", 1, ("beir/nfcorpus", "beir/scifact")), model("b", 2)]
    (found,) = compare_models(models, FAST)
    gap, row = found.collections
    assert (gap.on, gap.missing) == ("beir/nfcorpus", ("b: no result",))
    assert (gap.mean_b, gap.paired, gap.verdict) == (None, None, "neither")
    assert gap.mean_a == pytest.approx(
        models[0].results["beir/nfcorpus"].scores.values["nDCG@10"].mean()
    )
    assert row.paired.p_adjusted == row.paired.p


def test_models_without_a_common_collection_are_refused():
    models = [model("a", collections=["beir/nfcorpus"]), model("b")]
    with pytest.raises(BenchError, match="b on beir/nfcorpus has no result"):
        compare_models(models, FAST)


def other(value):
    return {bool: lambda: not value, int: lambda: value + 1, str: lambda: f"x{value}"}[
        type(value)
    ]()


FIELDS = [name for name in PROTOCOL.__struct_fields__ if name != "collection"]


@pytest.mark.parametrize("field", FIELDS)
def test_each_part_of_the_protocol_forbids_to_compare(field):
    changed = {field: other(getattr(PROTOCOL, field))}
    with pytest.raises(BenchError, match=f"a and b .* on beir/scifact: {field} "):
        compare_models([model("a", 1), model("b", 2, **changed)], FAST)


def test_a_run_file_whose_corpus_is_not_known_may_be_compared():
    models = [model("a", 1), model("b", 2, corpus_sha256="")]
    assert only(compare_models(models, FAST)).paired is not None


def test_different_queries_under_one_protocol_are_damage():
    first = ComparedModel("a", {"beir/scifact": entry([0.0, 0.5, 1.0], ["q1", "q2", "q3"])})
    second = ComparedModel("b", {"beir/scifact": entry([0.5, 1.0, 0.0], ["q2", "q3", "q4"])})
    with pytest.raises(BenchError, match="different queries"):
        compare_models([first, second], FAST)


def test_a_measure_is_taken_from_the_stored_values_or_missing_by_name():
    full = model("a", 1, measures=("nDCG@10", "RR@10"))
    other_ = model("b", 2, measures=("nDCG@10", "RR@10"))
    lacking = model("c", 3)
    choices = ComparisonSettings(measure="MRR@10", resampling=FAST.resampling)
    found = compare_models([full, other_, lacking], choices)
    assert found[0].collections[0].measure == "RR@10"
    assert found[0].collections[0].paired is not None
    assert found[1].collections[0].missing == ("c: no RR@10, but nDCG@10",)
    with pytest.raises(BenchError, match="c on beir/scifact has no RR@10, but nDCG@10"):
        compare_models([full, lacking], choices)
    with pytest.raises(BenchError, match="no measure 'nonsense'"):
        compare_models([full, lacking], ComparisonSettings(measure="nonsense"))


def test_different_main_measures_need_a_choice():
    models = [model("a"), model("b", main="RR@10")]
    with pytest.raises(BenchError, match="RR@10, nDCG@10") as error:
        compare_models(models, FAST)
    assert "--measure" in error.value.hint


def test_a_value_that_is_not_a_number_is_refused():
    broken = ComparedModel("b", {"beir/scifact": entry([0.1, float("nan")])})
    with pytest.raises(BenchError, match="not finite"):
        compare_models([ComparedModel("a", {"beir/scifact": entry([0.1, 0.2])}), broken], FAST)


@pytest.mark.parametrize(
    ("other", "differing"),
    [
        (
            {"recipe": HALF, "index": "HNSW32"},
            [("index", "flat", "HNSW32"), ("dtype", "float32", "float16")],
        ),
        ({}, [("run file", "", "f" * 12)]),
    ],
    ids=["recipe", "run file"],
)
def test_recipes_compare_freely_and_what_differs_is_listed(other, differing):
    models = [model("a", 1, recipe=RECIPE, index="flat"), model("b", 2, **other)]
    (found,) = compare_models(models, FAST)
    assert [(one.field, one.a, one.b) for one in found.recipes] == differing


# Suites

BEIR = expand_names(["beir"])


def test_the_mean_of_a_complete_suite_is_compared_with_its_nesting():
    models = [model("a", 1, BEIR), model("b", 2, BEIR, shift=0.1)]
    (found,) = compare_models(models, FAST)
    by_suite = {row.on: row for row in found.suites}
    assert {"beir", "beir-13", "beir/cqadupstack"} == set(by_suite)
    beir = by_suite["beir"]
    for name, side in (("mean_a", models[0]), ("mean_b", models[1])):
        means = {key: one.scores.values["nDCG@10"].mean() for key, one in side.results.items()}
        expected = suite_mean("beir", "nDCG@10", means).value
        assert getattr(beir, name) == pytest.approx(expected)
    assert beir.paired.difference == pytest.approx(beir.mean_a - beir.mean_b)
    assert beir.verdict == "b"
    alone = {row.on: row.paired for row in found.collections}
    assert (
        beir.paired.high - beir.paired.low < alone["beir/scifact"].high - alone["beir/scifact"].low
    )


def test_a_suite_that_only_one_model_completes_is_a_gap_that_names_what_is_missing():
    missing = "beir/cqadupstack/tex"
    rest = [name for name in BEIR if name != missing]
    (found,) = compare_models([model("a", 1, BEIR), model("b", 2, rest)], FAST)
    rows = {row.on: row for row in found.suites}
    assert rows["beir"].missing == ("beir/cqadupstack",)
    assert rows["beir/cqadupstack"].missing == (missing,)
    assert (rows["beir"].paired, rows["beir"].mean_a, rows["beir"].mean_b) == (None,) * 3
    assert rows["beir-13"].paired is not None


def test_a_requested_suite_is_shown_even_if_no_model_completes_it():
    choices = ComparisonSettings(suites=["beir"], resampling=FAST.resampling)
    (found,) = compare_models([model("a", 1), model("b", 2)], choices)
    (row,) = found.suites
    assert (row.on, row.members, len(row.missing)) == ("beir", 14, 13)
    (found,) = compare_models([model("a", 1), model("b", 2)], FAST)
    assert found.suites == ()


def test_unpublished_collections_are_not_in_a_mean():
    names = expand_names(["beir/cqadupstack"])
    models = [model("a", 1, names), model("b", 2, names)]
    for one in models:
        one.results[names[0]] = entry(np.ones(3), collection=names[0], official=False)
    (found,) = compare_models(models, FAST)
    assert not found.collections[0].official
    assert [row.missing for row in found.suites] == [(names[0],)]


def test_suites_of_different_measures_have_no_mean():
    names = expand_names(["msmarco"])
    models = [model(name, seed, names) for seed, name in enumerate("ab")]
    (found,) = compare_models(
        models, ComparisonSettings(suites=["msmarco"], resampling=FAST.resampling)
    )
    assert found.suites == ()
