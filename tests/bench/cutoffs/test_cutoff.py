"""`cutoff` from the command line and from Python, with models and run files, on real searches."""

import json
import math

import numpy as np
import pytest

import bench as api
from bench.cutoffs.cutoff import least_queries, lower_bound
from bench.requests.outcomes import ExitCode
from tests.support.collections import (
    SIXTY,
    SIXTY_QRELS,
    with_metadata,
    write_collection,
    write_run,
)

METADATA = 'name = "{}"\nmain_measure = "nDCG@10"\n'


@pytest.fixture
def sixty(tmp_path):
    return write_collection(tmp_path / "sixty", *SIXTY, metadata=METADATA.format("sixty"))


def cutoff(bench, *words):
    done = bench("cutoff", *words, "--json", "--cache-dir", bench.cache)
    assert done.code in (ExitCode.OK, ExitCode.INCONCLUSIVE), done.stderr
    return json.loads(done.stdout), done.code


def separable(relevant=2.0, other=1.0, step=0.01):
    """Two documents for each of the sixty queries, whose scores rise with the query."""
    return {
        query: {document: relevant + place * step, f"x{place}": other + place * step}
        for place, (query, document) in enumerate(SIXTY_QRELS)
    }


@pytest.mark.parametrize("model", ["bm25", "hashing"])
def test_words_of_their_own_separate_queries_with_and_without_an_answer(bench, sixty, model):
    found, code = cutoff(bench, model, "--on", sixty)
    (on,) = found["collections"]
    assert code == ExitCode.OK
    assert found["queries"] == {"sixty": 60}
    assert (on["kept"], on["overlap"]) == (1.0, 0.0)
    assert on["proved"] == pytest.approx(0.05 ** (1 / 60), rel=1e-3)
    assert on["silent"]["value"] >= 0.9  # hashing confuses some words
    run = bench("run", sixty, "--model", model, "--depth", "11", "--measure", "Success@10")
    assert run.code == 0
    (folder,) = (bench.out / "sixty" / model).iterdir()
    best = [scores[0] for _, _, scores in api.load_result(folder).run.rankings()]
    assert found["cutoff"] == min(best)


def test_too_few_queries_are_noticed_before_anything_is_searched(bench, sixty):
    found, code = cutoff(bench, "hashing", "--on", sixty, "--keep", ".96")
    assert code == ExitCode.INCONCLUSIVE
    assert (found["cutoff"], found["searched"], found["needed"]) == (None, False, 74)
    assert found["needed"] == math.ceil(math.log(0.05) / math.log(0.96)) == least_queries(0.96)
    assert not list(bench.cache.rglob("*.f32"))
    done = bench("cutoff", "hashing", "--on", sixty, "--keep", ".96", "--cache-dir", bench.cache)
    assert "Keeping 96 % needs 74 queries with a relevant document, even if" in done.stdout


def test_queries_whose_relevant_documents_are_not_found_do_not_count(bench, sixty, tmp_path):
    rankings = separable()
    for query in ("q00", "q01"):
        rankings[query] = {"x": 3.0, "y": 2.0}
    run = write_run(tmp_path / "some.trec", rankings)
    found, code = cutoff(bench, run, "--on", sixty, "--at", "2")
    assert code == ExitCode.INCONCLUSIVE
    assert (found["queries"], found["searched"], found["needed"]) == ({"sixty": 58}, True, 59)
    assert (found["cutoff"], found["collections"]) == (None, [])


def test_a_run_file_is_cut_at_its_own_scores_and_text_states_it(bench, sixty, tmp_path):
    run = write_run(tmp_path / "some.trec", separable())
    found, code = cutoff(bench, run, "--on", sixty, "--at", "2", "--keep", ".9")
    (on,) = found["collections"]
    lost = round(60 * (1 - on["kept"]))
    assert code == ExitCode.OK
    assert (lost, on["silent"]["value"]) == (1, 1.0)  # Clopper and Pearson: .899 for two
    assert found["cutoff"] == np.float32(2 + 0.01 * lost)
    done = bench("cutoff", run, "--on", sixty, "--at", "2", "--keep", ".9")
    assert (
        "Return documents that score 2.0099 or more: at least 90 % of the relevant documents among "
        "the first 2 remain, in the mean over new queries like those of sixty (95 % confidence)."
    ) in done.stdout
    assert "100 % [94, 100]" in done.stdout


def test_each_slice_has_a_cutoff_of_its_own_at_a_corrected_level(bench, tmp_path):
    own = with_metadata(tmp_path / "own", ["a", "b", "c"])
    run = write_run(tmp_path / "some.trec", separable())
    typed = (run, "--on", own, "--at", "2", "--keep", ".8", "--by", "topic")
    found, code = cutoff(bench, *typed)
    assert code == ExitCode.OK
    assert (found["cutoff"], found["collections"], found["by"]) == (None, [], "topic")
    assert {one["value"]: one["cutoff"] for one in found["slices"]} == {
        "a": np.float32(2.0),
        "b": np.float32(2.01),
        "c": np.float32(2.02),
    }  # none of 20 queries may lose, with 95 % confidence on all three
    assert found["needed"] == 19
    for one in found["slices"]:
        assert one["queries"] == 20
        assert one["done"]["proved"] == pytest.approx((0.05 / 3) ** (1 / 20), abs=1e-3)
    figure = tmp_path / "slices.svg"
    done = bench("cutoff", *typed, "--figure", figure)
    assert "in all 3 slices together" in done.stdout
    assert "a (own)" in figure.read_text()


def test_a_slice_with_too_few_queries_has_no_cutoff_and_exit_code_3(bench, tmp_path):
    own = with_metadata(tmp_path / "own", ["a", "a", "a", "b"])
    run = write_run(tmp_path / "some.trec", separable())
    typed = (run, "--on", own, "--at", "2", "--keep", ".85", "--by", "topic")
    found, code = cutoff(bench, *typed)
    assert code == ExitCode.INCONCLUSIVE
    assert {one["value"]: one["cutoff"] is None for one in found["slices"]} == {"a": 0, "b": 1}
    done = bench("cutoff", *typed)
    assert "No cut-off is proved for b (own). A slice needs 23 queries" in done.stdout


def test_equal_scores_do_not_separate_and_the_cost_is_said_first(bench, sixty, tmp_path):
    run = write_run(tmp_path / "some.trec", separable(other=2.0))
    done = bench("cutoff", run, "--on", sixty, "--at", "2", "--keep", ".9")
    assert done.code == ExitCode.INCONCLUSIVE
    assert done.stdout.startswith(
        "Scores of some hardly separate on sixty: 98 % of the queries without an answer still "
        "return something."
    )


def test_rankings_of_relevant_documents_alone_are_too_short_to_take_them_out(
    bench, sixty, tmp_path
):
    rankings = separable()
    for query in list(rankings)[:5]:
        rankings[query].popitem()
    rankings["q10"] = {"d10": 2.1, "x": 2.0}
    rankings["q11"]["d11"] = 2.11
    run = write_run(
        tmp_path / "some.trec", {q: dict([*r.items()][:1]) for q, r in rankings.items()}
    )
    found, code = cutoff(bench, run, "--on", sixty, "--at", "1")
    (on,) = found["collections"]
    assert code == ExitCode.INCONCLUSIVE
    assert (on["silent"], on["too_short"]) == (None, 60)
    done = bench("cutoff", run, "--on", sixty, "--at", "1")
    assert "the rankings of sixty are too short to tell" in done.stdout
    assert "too short to take the relevant documents of 60 queries out" in done.stdout


def test_a_grade_below_that_of_the_measures_is_not_relevant(bench, tmp_path):
    documents, queries, qrels = SIXTY
    graded = dict.fromkeys(qrels, 2) | {("q00", "d01"): 1}
    metadata = METADATA.format("graded") + 'measures = ["R(rel=2)@10"]\n'
    graded_folder = write_collection(tmp_path / "graded", documents, queries, graded, metadata)
    rankings = {query: {document: 2.0 + int(query[1:]) / 64} for query, document in qrels}
    rankings["q00"]["d01"] = 1.5
    run = write_run(tmp_path / "some.trec", rankings)
    found, _ = cutoff(bench, run, "--on", graded_folder, "--at", "2")
    assert found["cutoff"] == 2.0


def test_the_proof_must_hold_on_each_collection(bench, sixty, tmp_path):
    harder = write_collection(tmp_path / "harder", *SIXTY, metadata=METADATA.format("harder"))
    lines = [
        json.dumps({"_id": query, "text": f"{text} common common common"}) + "\n"
        for query, text in SIXTY[1].items()
    ]
    (harder / "queries.jsonl").write_text("".join(lines))
    both, _ = cutoff(bench, "hashing", "--on", sixty, harder)
    each = [cutoff(bench, "hashing", "--on", folder)[0] for folder in (sixty, harder)]
    assert both["cutoff"] == min(one["cutoff"] for one in each)
    assert [on["name"] for on in both["collections"]] == ["sixty", "harder"]


def test_the_cutoff_like_that_of_another_model_keeps_as_much(bench, sixty, tmp_path):
    old = write_run(tmp_path / "old.trec", separable())
    new = write_run(tmp_path / "new.trec", separable(relevant=200.0, other=199.9, step=1.0))
    found, _ = cutoff(bench, new, "--on", sixty, "--at", "2", "--like-cutoff", f"{old}=2.055")
    (before,), (after,) = found["like"]["collections"], found["collections"]
    assert (found["like"]["model"], found["like"]["cutoff"], found["keep"]) == ("old", 2.055, None)
    assert before["kept"] == after["kept"] == pytest.approx(54 / 60)
    assert found["cutoff"] == 206.0
    assert (before["silent"]["value"], after["silent"]["value"]) == (1.0, pytest.approx(7 / 60))
    same, _ = cutoff(bench, old, "--on", sixty, "--at", "2", "--like-cutoff", f"{old}=2.055")
    assert same["cutoff"] == np.float32(2.06)
    done = bench("cutoff", new, "--on", sixty, "--at", "2", "--like-cutoff", f"{old}=2.055")
    assert "206 or more: on these queries, as many of the relevant" in done.stdout
    assert "as with old at 2.055" in done.stdout


def test_given_queries_without_an_answer_decide_whether_scores_separate(bench, sixty, tmp_path):
    path = tmp_path / "off-topic.txt"
    path.write_text("nothing of this\n\nwordaa text\nnothing of this\n", encoding="utf-8")
    found, code = cutoff(bench, "bm25", "--on", sixty, "--without-answer", path)
    (on,) = found["collections"]
    assert on["silent_given"]["queries"] == 2
    assert on["silent_given"]["value"] == 0.5  # the second has an answer after all
    assert code == ExitCode.INCONCLUSIVE  # two queries show nothing
    typed = ("--without-answer", path, "--cache-dir", bench.cache)
    assert bench("cutoff", "bm25", "--on", sixty, *typed).stdout.startswith(
        "It is uncertain whether scores of bm25 separate on sixty: 50 % [1, 99] of the given"
    )
    path.write_text("".join(f"unknown{n} words{n}\n" for n in range(60)), encoding="utf-8")
    found, code = cutoff(bench, "bm25", "--on", sixty, "--without-answer", path)
    assert (found["collections"][0]["silent_given"]["value"], code) == (1.0, ExitCode.OK)


def test_the_figure_names_the_collection_and_python_returns_the_record(bench, sixty, tmp_path):
    figure = tmp_path / "cutoff.svg"
    found, _ = cutoff(bench, "bm25", "--on", sixty, "--figure", figure)
    assert "sixty" in figure.read_text()
    done = api.cutoff("bm25", sixty, cache_dir=bench.cache)
    assert (done.cutoff, done.exit_code) == (found["cutoff"], ExitCode.OK)
    curve = found["collections"][0]["curve"]
    kept = [point["kept"] for point in curve]
    assert kept == sorted(kept, reverse=True)
    assert all(point["proved"] <= point["kept"] for point in curve)


def test_the_figures_of_a_published_run_are_those_of_plain_loops(bench, bench_data):
    path = bench_data / "runs" / "scifact.all-minilm-l6-v2.trec"
    qrels, rankings = {}, {}
    for line in (bench_data / "beir/scifact/qrels/test.tsv").read_text().splitlines()[1:]:
        query, document, _ = line.split("\t")
        qrels.setdefault(query, set()).add(document)
    for line in path.read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        rankings.setdefault(query, []).append((np.float32(score), document))
    ranked = {query: sorted(pairs, reverse=True) for query, pairs in rankings.items()}
    best = {q: max(s for s, d in pairs if d not in qrels[q]) for q, pairs in ranked.items()}
    right = {q: [s for s, d in pairs[:10] if d in qrels[q]] for q, pairs in ranked.items()}
    answered = {query: scores for query, scores in right.items() if scores}
    words = ("--on", "beir/scifact", "--data-dir", bench_data)
    found, code = cutoff(bench, path, *words)
    (on,) = found["collections"]
    kept = [np.mean([s >= np.float32(found["cutoff"]) for s in each]) for each in answered.values()]
    assert code == ExitCode.INCONCLUSIVE  # scores hardly separate
    assert (on["queries"], on["silent"]["queries"]) == (len(answered), len(qrels)) == (238, 300)
    assert on["kept"] == pytest.approx(np.mean(kept))
    assert on["proved"] == pytest.approx(lower_bound(np.array(kept)))
    assert on["proved"] >= 0.95
    silent = [score < np.float32(found["cutoff"]) for score in best.values()]
    assert on["silent"]["value"] == pytest.approx(np.mean(silent))
    assert on["overlap"] == pytest.approx(np.mean([best[q] > max(answered[q]) for q in answered]))
    higher = min(s for each in answered.values() for s in each if s > np.float32(found["cutoff"]))
    fewer = [np.mean([s >= higher for s in each]) for each in answered.values()]
    assert lower_bound(np.array(fewer)) < 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["{shallow}"], "has at most 1 document for a query, and 10 count"),
        (["{ranks}", "--at", "2"], "has ranks instead of scores"),
        (["{wrong}", "--at", "1"], "has no relevant document of sixty among the first 1"),
    ],
)
def test_a_run_that_has_no_cutoff_is_refused(bench, sixty, tmp_path, options, message):
    ranked = {query: {document: -1.0, "x": -2.0} for query, document in SIXTY_QRELS}
    files = {
        "shallow": {q: {d: float(d[1:])} for q, d in SIXTY_QRELS},
        "ranks": ranked,
        "wrong": {f"q{place:02}": {f"d{59 - place:02}": float(place)} for place in range(60)},
    }
    places = {name: write_run(tmp_path / name, rankings) for name, rankings in files.items()}
    words = [word.format(**places) for word in options]
    done = bench("cutoff", words[0], "--on", sixty, *words[1:], "--cache-dir", bench.cache)
    assert done.code == ExitCode.BAD_INPUT
    assert message in done.stderr
    assert "Traceback" not in done.stderr
