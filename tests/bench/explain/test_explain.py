"""`explain` names planted deviations, which transformers and plain NumPy apply here."""

import functools
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import transformers

from bench.evaluation.run_files import read_run_file
from bench.explain.deviation_search import answer_question
from bench.explain.question import Question, observe_run
from bench.explain.setup import Answer
from bench.runner.workspace import Workspace
from retrievers.models.settings import ModelSettings
from tests.support.collections import WORDS, write_collection
from tests.support.tiny_checkpoints import write_bert, write_card

RANDOM = random.Random(4)
LENGTH = 24


def sentence(words: int) -> str:
    return " ".join(RANDOM.choice([*WORDS, "River", "Stone"]) for _ in range(words))


DOCUMENTS = {
    f"d{i:02}": (sentence(2), sentence(RANDOM.choice([5, 9, 40])) + (" café" if i % 5 == 0 else ""))
    for i in range(40)
}
QUERIES = {f"q{i:02}": sentence(4) for i in range(12)} | {"d01": " ".join(DOCUMENTS["d01"])}
QRELS = {
    (query, document): RANDOM.choice([1, 2])
    for query in QUERIES
    for document in RANDOM.sample(sorted(DOCUMENTS), 3)
} | {("d01", "d01"): 2}


@dataclass(frozen=True)
class Usage:
    """How the oracle makes vectors."""

    pooling: str = "cls"
    normalize: bool = False
    query: str = "alpha "
    document: str = "beta "
    title: bool = True
    length: int = LENGTH
    side: str = "right"
    cased: bool = False
    first: bool = True
    last: bool = True
    width: int | None = None


DEFAULT = Usage()


class Oracle:
    """A tiny BERT by transformers, text by text. It remembers vectors, which many tests ask for."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder
        self.network = transformers.AutoModel.from_pretrained(folder).eval()
        self.vector = functools.cache(self._vector)
        self.tokenizer = functools.cache(self._tokenizer)

    def _tokenizer(self, cased: bool, side: str) -> Any:
        case = {"do_lower_case": False, "strip_accents": False} if cased else {}
        tokenizer = transformers.BertTokenizerFast(str(self.folder / "vocab.txt"), **case)
        tokenizer.truncation_side = side
        return tokenizer

    def _vector(self, usage: Usage, text: str) -> np.ndarray:
        longest = usage.length + (not usage.first) + (not usage.last)
        tokenizer = self.tokenizer(usage.cased, usage.side)
        ids = tokenizer(text, truncation=True, max_length=longest)["input_ids"]
        ids = ids[int(not usage.first) : len(ids) - (not usage.last)]
        with torch.inference_mode():
            states = self.network(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        pooled = {"cls": states[0], "mean": states.mean(axis=0), "last": states[-1]}
        vector = pooled[usage.pooling][: usage.width]
        return vector / np.linalg.norm(vector) if usage.normalize else vector

    def documents(self, usage: Usage) -> np.ndarray:
        rows = [
            usage.document + (f"{title} " if usage.title else "") + text
            for title, text in DOCUMENTS.values()
        ]
        return np.stack([self.vector(usage, row) for row in rows])

    def queries(self, usage: Usage) -> np.ndarray:
        return np.stack([self.vector(usage, usage.query + text) for text in QUERIES.values()])

    def run(self, usage: Usage, depth: int = 40, keep_self: bool = True) -> str:
        lines = []
        products = self.queries(usage) @ self.documents(usage).T
        for query, scores in zip(QUERIES, products, strict=True):
            order = [list(DOCUMENTS)[row] for row in np.argsort(-scores)]
            kept = [id_ for id_ in order if keep_self or id_ != query][:depth]
            by_id = dict(zip(DOCUMENTS, scores.tolist(), strict=True))
            lines += [f"{query} Q0 {id_} {n} {by_id[id_]:.7f} x\n" for n, id_ in enumerate(kept)]
        return "".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint, its card and a collection."""
    folder = tmp_path_factory.mktemp("explain")
    write_bert(folder / "checkpoint")
    prompts = {"query": "alpha ", "document": "beta "}
    card = {"checkpoint": "checkpoint", "pooling": "cls", "prompts": prompts}
    lengths = {"max_query_tokens": LENGTH, "max_document_tokens": LENGTH}
    write_card(folder / "tiny.toml", **card, **lengths)
    metadata = 'exclude_self = true\nmeasures = ["R@10"]\ndepth = 30\n'
    write_collection(folder / "words", DOCUMENTS, QUERIES, QRELS, metadata)
    return folder


@pytest.fixture(scope="module")
def oracle(folder):
    return Oracle(folder / "checkpoint")


@pytest.fixture(scope="module")
def question(folder):
    workspace = Workspace(folder / "cache")
    dataset = workspace.dataset(str(folder / "words"))
    return Question(
        workspace.load(str(folder / "tiny.toml")), [dataset], workspace.dataset, device="cpu"
    )


def answer_to(question, folder, documents, queries=None, ids=None) -> Answer:
    ids = list(DOCUMENTS) if ids is None else ids
    vectors = documents
    if queries is not None:
        # "d01" is a document and a query: the file says it once, for the document.
        ids, vectors = [*ids, *list(QUERIES)[:-1]], np.concatenate([documents, queries[:-1]])
    np.savez(folder / "theirs.npz", ids=np.array(ids), vectors=vectors)
    return answer_question(question, [question.of_vectors(folder / "theirs.npz")])


def names(answer: Answer) -> list[set[str]]:
    return [{*row.deviations, *row.equals} for row in answer.explanations]


SINGLES: dict[str, dict[str, Any]] = {
    "mean pooling": {"pooling": "mean"},
    "cosine: vectors normalised": {"normalize": True},
    "document prompt missing": {"document": ""},
    "prompts of queries and documents swapped": {"query": "beta ", "document": "alpha "},
    "title left out": {"title": False},
    "long texts lose their first tokens": {"side": "left"},
    "texts not lower-cased": {"cased": True},
    "no token before the text (BOS, [CLS])": {"first": False},
    "no token after the text (EOS, [SEP])": {"last": False},
}


FAST = {"mean pooling", "document prompt missing", "texts not lower-cased"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in SINGLES]
)
def test_a_planted_deviation_is_named_first(question, oracle, folder, name):
    usage = replace(Usage(), **SINGLES[name])
    answer = answer_to(question, folder, oracle.documents(usage), oracle.queries(usage))
    assert answer.verdict == "explained"
    assert name in names(answer)[0]
    assert answer.explanations[0].share == 1.0
    assert answer.explanations[0].precision == "float32"


@pytest.mark.slow
def test_a_pair_is_found_if_no_single_deviation_explains(question, oracle, folder):
    usage = Usage(pooling="mean", document="")
    answer = answer_to(question, folder, oracle.documents(usage), oracle.queries(usage))
    assert set(answer.explanations[0].deviations) == {"mean pooling", "document prompt missing"}
    assert answer.pairs


def test_a_wrong_order_of_vectors_is_distinguished_from_other_causes(question, oracle, folder):
    vectors = np.roll(oracle.documents(Usage()), 1, axis=0)
    answer = answer_to(question, folder, vectors)
    assert answer.explanations[0].deviations == ("vectors in another order",)


def stored_int8(vectors: np.ndarray) -> np.ndarray:
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    return (np.rint((vectors - low) / (high - low) * 255) - 128).astype(np.int8)


@pytest.mark.parametrize(
    ("precision", "rounded"),
    [("float16", lambda vectors: vectors.astype(np.float16)), ("bfloat16", stored_int8)],
    ids=["float16", "int8"],
)
def test_rounding_is_no_cause(question, oracle, folder, precision, rounded):
    answer = answer_to(question, folder, rounded(oracle.documents(Usage())))
    assert answer.verdict == "reproduced"
    assert answer.precision == precision


@pytest.mark.slow
def test_a_compressed_model_is_the_one_whose_vectors_are_explained(oracle, folder):
    workspace = Workspace(folder / "cache")
    dataset = workspace.dataset(str(folder / "words"))
    model = workspace.load(
        str(folder / "tiny.toml"), ModelSettings(dimensions=16, precision="uint8")
    )
    question = Question(model, [dataset], workspace.dataset, device="cpu")
    answer = answer_to(question, folder, oracle.documents(Usage(width=16)))
    assert answer.verdict == "reproduced"
    whole = answer_to(question, folder, oracle.documents(Usage()))
    assert whole.verdict != "reproduced"
    assert "all dimensions" in names(whole)[0]
    untitled = answer_to(question, folder, oracle.documents(Usage(title=False)))
    assert {"all dimensions", "title left out"} <= names(untitled)[0]


def test_foreign_vectors_have_no_cause(question, folder):
    rng = np.random.default_rng(0)
    foreign = rng.normal(size=(len(DOCUMENTS), 32)).astype(np.float32)
    answer = answer_to(question, folder, foreign)
    assert (answer.verdict, answer.explanations) == ("none", ())


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet"])
def test_vectors_are_read_in_every_format(question, oracle, tmp_path, suffix):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file

    vectors, path = oracle.documents(DEFAULT), tmp_path / f"theirs{suffix}"
    write: dict[str, Callable[[], Any]] = {
        ".npy": lambda: np.save(path, vectors),
        ".safetensors": lambda: save_file({"embeddings": vectors}, path),
        ".parquet": lambda: pq.write_table(
            pa.table({"id": list(DOCUMENTS), "vector": vectors.tolist()}), path
        ),
    }
    write[suffix]()
    given = question.of_vectors(path).given["document"]
    rows = [list(DOCUMENTS).index(id_) for id_ in given.texts.ids]
    np.testing.assert_allclose(given.vectors, vectors[rows])


def explain(bench, folder, *words: Any) -> Any:
    done = bench("explain", folder / "tiny.toml", "--on", folder / "words", *words, "--json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def best(document: dict[str, Any]) -> set[str]:
    return {*document["explanations"][0]["deviations"], *document["explanations"][0]["equals"]}


def test_a_run_shows_its_cause_and_what_differs_in_the_file(bench, folder, oracle, tmp_path):
    path = tmp_path / "theirs.trec"
    path.write_text(oracle.run(Usage(pooling="mean"), depth=20))
    answer = explain(bench, folder, "--run-file", path)
    assert answer["verdict"] == "explained"
    assert "mean pooling" in best(answer)
    seen = " ".join(one["name"] for one in answer["seen"])
    assert "the query's id is kept" in seen
    assert "at most 20 documents" in seen


@pytest.mark.slow
def test_a_run_of_ranks_is_compared_by_order(bench, folder, oracle, tmp_path):
    path = tmp_path / "theirs.trec"
    path.write_text(oracle.run(Usage(pooling="mean"), depth=30, keep_self=False))
    lines = []
    for query, documents, _ in read_run_file(path).run.rankings():
        lines += [f"{query} Q0 {id_} {n} {30 - n} x\n" for n, id_ in enumerate(documents)]
    path.write_text("".join(lines))
    answer = explain(bench, folder, "--run-file", path)
    assert "mean pooling" in best(answer)
    assert "ranks" in answer["explanations"][0]["detail"]


def test_a_run_without_self_matches_shows_their_rule(question, oracle, tmp_path):
    metadata = msgspec.structs.replace(question.dataset.metadata, exclude_self=False)
    keeps = replace(question.dataset, metadata=metadata)
    for keep_self, seen in ((True, []), (False, ["dataset.toml: exclude_self = true"])):
        path = tmp_path / "theirs.trec"
        path.write_text(oracle.run(Usage(), 40, keep_self))
        notes = observe_run(read_run_file(path).run, keeps)
        assert [note.apply for note in notes if "query's id" in note.name] == seen


def test_the_split_of_a_run_is_found_in_a_folder(bench, folder, oracle, tmp_path):
    words = write_collection(tmp_path / "splits", DOCUMENTS, QUERIES, QRELS)
    lines = (words / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    for split, keep in (("test", ("d01", "q00")), ("dev", ("q01", "q02"))):
        rows = [line for line in lines[1:] if line.startswith(keep)]
        (words / "qrels" / f"{split}.tsv").write_text("".join([lines[0], *rows]))
    rows = [line for line in oracle.run(Usage()).splitlines(True) if line.startswith(keep)]
    (tmp_path / "dev.trec").write_text("".join(rows))
    run = ("--run-file", tmp_path / "dev.trec", "--json")
    done = bench("explain", folder / "tiny.toml", "--on", words, *run)
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "reproduced"
    assert "--split dev" in [one["apply"] for one in answer["seen"]]


def test_the_mean_over_answered_queries_leaves_the_others_out(question):
    scores, setup = question.collections["words"].scores, replace(question.setup, depth=2)
    values = scores(setup, ["R@10"]).values["R@10"]
    answered = scores(replace(setup, answered_only=True), ["R@10"])
    assert 0 < np.count_nonzero(values) < len(values)
    assert answered.mean("R@10") == pytest.approx(values[values > 0].mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "usage", "metadata"),
    [
        ("mean pooling", Usage(pooling="mean"), ""),
        ("document with the query's id kept", Usage(), 'measures = ["R@10"]\ndepth = 30\n'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_published_scores_name_the_cause(bench, folder, oracle, tmp_path, name, usage, metadata):
    run, collection = tmp_path / "oracle.trec", folder / "words"
    run.write_text(oracle.run(usage, 30, keep_self=bool(metadata)))
    if metadata:
        collection = write_collection(tmp_path / "other", DOCUMENTS, QUERIES, QRELS, metadata)
    scored = bench("score", run, "--dataset", collection, "--json")
    measures = json.loads(scored.stdout)["results"][0]["measures"]
    typed = [("--published", f"{key}={value:.5f}") for key, value in measures.items()]
    answer = explain(bench, folder, *(word for pair in typed for word in pair))
    found = [{*row["deviations"], *row["equals"]} for row in answer["explanations"][:3]]
    assert any(name in each for each in found), (typed, answer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("usage", "probed", "given"), [(Usage(title=False), 32, 13), (Usage(pooling="mean"), 1, 6)]
)
def test_scores_by_query_name_the_cause(
    bench, folder, oracle, tmp_path, monkeypatch, usage, probed, given
):
    monkeypatch.setattr("bench.explain.scored.SAMPLE_QUERIES", probed)
    run = tmp_path / "oracle.trec"
    run.write_text(oracle.run(usage, 30, keep_self=False))
    dataset = Workspace(tmp_path / "cache").dataset(str(folder / "words"))
    from bench.evaluation.scoring import score

    scores = score(read_run_file(run).run, dataset.qrels, ["nDCG@10"]).by_query("nDCG@10")
    path = tmp_path / "scores.txt"
    lines = [f"ndcg_cut_10 {query} {value:.4f}\n" for query, value in scores.items()]
    path.write_text("".join(lines[:given]))
    answer = explain(bench, folder, "--per-query", path)
    assert ("mean pooling" if usage.title else "title left out") in best(answer)
    assert answer["explanations"][0]["cost"] is not None


def test_another_checkpoint_differs_by_its_weights(bench, folder, tmp_path):
    write_bert(tmp_path / "worse", seed=9)
    answer = explain(bench, folder, "--checkpoint", tmp_path / "worse")
    assert "weights of worse" in best(answer)


def test_equal_weights_are_no_cause_and_the_tokens_with_other_ids_are_named(
    bench, folder, tmp_path
):
    swapped = tmp_path / "swapped"
    shutil.copytree(folder / "checkpoint", swapped)
    path = swapped / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    ids = tokenizer["model"]["vocab"]
    ids["river"], ids["stone"] = ids["stone"], ids["river"]
    path.write_text(json.dumps(tokenizer))
    vocabulary = swapped / "vocab.txt"
    words = sorted(ids, key=ids.__getitem__)
    vocabulary.write_text("".join(f"{word}\n" for word in words))
    answer = explain(bench, folder, "--checkpoint", swapped)
    assert best(answer) == {"tokenizer of swapped"}
    files, tokens = (one["name"] for one in answer["seen"])
    assert "tokenizer.json" in files
    assert "byte-identical" in files
    assert "2 tokens have other ids in swapped" in tokens


def test_the_prompts_of_another_checkpoint_are_named(bench, folder, tmp_path):
    shutil.copytree(folder / "checkpoint", tmp_path / "other")
    prompts = {"query": "river stone ", "document": "stone "}
    lengths = {"max_query_tokens": LENGTH, "max_document_tokens": LENGTH}
    card = {"checkpoint": "other", "pooling": "cls", "prompts": prompts}
    write_card(tmp_path / "other.toml", **card, **lengths)
    answer = explain(bench, folder, "--checkpoint", tmp_path / "other.toml")
    assert answer["explanations"][0]["deviations"] == ["prompts of other"]
    assert "none; the weights are byte-identical" in answer["seen"][0]["name"]


def test_the_precision_of_stored_weights_is_named(question, folder):
    rounded = Oracle(folder / "checkpoint")
    rounded.network = rounded.network.bfloat16().float()
    answer = answer_to(question, folder, rounded.documents(DEFAULT), rounded.queries(DEFAULT))
    assert names(answer) == [{"weights stored in bfloat16"}]
    half, computed = Oracle(folder / "checkpoint"), rounded.network.bfloat16()
    half.network = lambda **given: SimpleNamespace(
        last_hidden_state=computed(**given).last_hidden_state.float()
    )
    answer = answer_to(question, folder, half.documents(DEFAULT), half.queries(DEFAULT))
    assert answer.verdict == "reproduced"  # arithmetic of this precision is no cause


@pytest.mark.parametrize("query", ["alpha ", "task: search result | query: "])
def test_a_title_template_is_named(question, oracle, folder, query):
    rows = [f"title: {title} | text: {text}" for title, text in DOCUMENTS.values()]
    documents = np.stack([oracle.vector(DEFAULT, row) for row in rows])
    answer = answer_to(question, folder, documents, oracle.queries(Usage(query=query)))
    name = "'title: {title} | text: {text}' as document"
    task = "prompts and title template of EmbeddingGemma"
    assert (name if query == "alpha " else task) in names(answer)[0]
