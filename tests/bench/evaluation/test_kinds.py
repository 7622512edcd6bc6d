"""What every kind of model promises as a retriever, over all registered kinds."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from bench.evaluation.judging import apply_protocol
from bench.evaluation.pipeline import Job, evaluate
from bench.evaluation.registry import RETRIEVERS
from bench.evaluation.retriever import EvaluationOptions, Retriever
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from retrievers.encoders.transformer import OPENERS
from retrievers.encoders.views import View
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.kinds import KINDS, OF_TEXTS, OF_VECTORS, KindName
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import DOCUMENTS, QUERIES, write_collection
from tests.support.embedding_server import serve_model, serving

SELF = "exclude_self = true\n"
PLAIN = EvaluationOptions()
ENCODER = """
import hashlib
import numpy as np

def letters(texts):
    counts = [[text.count(letter) for letter in "abcdefghiklmnoprstuw"] for text in texts]
    return np.array(counts, np.float32) + 0.01
"""
SYSTEM = """
class Letters:
    version = "1"

    def __init__(self, documents):
        self.documents = documents

    def search(self, queries, k):
        return [self.rank(set(query))[:k] for query in queries]

    def rank(self, letters):
        scores = {name: len(letters & set(text)) for name, text in self.documents.items()}
        return sorted(scores.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
"""
RERANKER = """
def count(query, texts):
    return [len(text) / 8 for text in texts]
"""


@dataclass(frozen=True)
class Example:
    """A model of one kind, as a user names it."""

    name: str
    settings: dict[str, object]


def transformer(folder: Path, stack: ExitStack) -> Example:
    tiny.write_bert(folder / "bert")
    card = tiny.write_card(folder / "tiny.toml", checkpoint="bert", pooling="cls")
    return Example(str(card), {"allow_unknown_tokens": True})


def hashing(folder: Path, stack: ExitStack) -> Example:
    return Example("hashing", {})


def bm25(folder: Path, stack: ExitStack) -> Example:
    return Example("bm25", {})


def python(folder: Path, stack: ExitStack) -> Example:
    (folder / "letters.py").write_text(ENCODER, encoding="utf-8")
    return Example(f"{folder / 'letters.py'}:letters", {"trust_code": True})


def endpoint(folder: Path, stack: ExitStack) -> Example:
    encoder = Workspace(folder / "served").load("hashing").require_encoder()
    url, _ = stack.enter_context(serving(serve_model(encoder)))
    return Example(url, {"endpoint_model": "served"})


def vectors(folder: Path, stack: ExitStack) -> Example:
    encoder = Workspace(folder / "made").load("hashing").require_encoder()
    titles, texts = zip(*DOCUMENTS.values(), strict=True)
    made = folder / "ready"
    made.mkdir()
    np.save(made / "documents.npy", encoder.encode_documents(titles, texts))
    (made / "documents.ids.txt").write_text("\n".join(DOCUMENTS), encoding="utf-8")
    asked = encoder.encode_queries([*QUERIES.values()])
    np.savez(made / "queries.npz", vectors=asked, ids=[*QUERIES])
    return Example(f"vectors:{made}", {})


def system(folder: Path, stack: ExitStack) -> Example:
    texts = {name: " ".join(document) for name, document in DOCUMENTS.items()}
    code = f"{SYSTEM}\nprod = Letters({texts!r})\n"
    (folder / "search.py").write_text(code, encoding="utf-8")
    return Example(f"{folder / 'search.py'}:prod", {"trust_code": True})


def fusion(folder: Path, stack: ExitStack) -> Example:
    return Example("hashing+bm25", {})


def rerank(folder: Path, stack: ExitStack) -> Example:
    (folder / "rerank.py").write_text(RERANKER, encoding="utf-8")
    card = folder / "reranked.toml"
    card.write_text(
        'name = "reranked"\ntitle = "t"\nkind = "rerank"\nmodel = "hashing"\n'
        'reranker = "rerank.py:count"\ndepth = 2\n',
        encoding="utf-8",
    )
    return Example(str(card), {"trust_code": True})


MAKE = (transformer, hashing, bm25, python, endpoint, vectors, system, fusion, rerank)
EXAMPLES: dict[str, Callable[[Path, ExitStack], Example]] = {make.__name__: make for make in MAKE}


def test_every_kind_has_a_retriever_and_an_example_here():
    assert RETRIEVERS.keys() == KINDS.keys() == EXAMPLES.keys() == {*get_args(KindName)}
    assert OPENERS.keys() == {name for name, kind in KINDS.items() if kind.makes_vectors}


@dataclass(frozen=True)
class Bed:
    """A model of one kind, its kind, and a workspace."""

    kind: str
    example: Example
    workspace: Workspace
    folder: Path

    def load(self, **settings: object) -> Retriever:
        return self.workspace.load(
            self.example.name, ModelSettings(**{**self.example.settings, **settings})
        )

    def job(self, options: EvaluationOptions = PLAIN, metadata: str = "") -> Job:
        folder = self.folder / f"collection{bool(metadata)}"
        if not folder.exists():
            write_collection(folder, metadata=metadata)
        return self.workspace.prepare(self.workspace.open(str(folder)), self.load(), options)


@pytest.fixture(scope="module", params=EXAMPLES)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        example = EXAMPLES[request.param](folder, stack)
        yield Bed(request.param, example, Workspace(folder / "cache", device="cpu"), folder)


def rankings(job: Job) -> dict[str, list[tuple[str, float]]]:
    return {
        query: list(zip(ids, scores.tolist(), strict=True))
        for query, ids, scores in evaluate(job).run.rankings()
    }


def test_rankings_are_in_canonical_order_with_distinct_documents_of_the_collection(bed):
    for query, ranking in rankings(bed.job()).items():
        assert query in QUERIES
        ids = [name for name, _ in ranking]
        assert len(set(ids)) == len(ids)
        assert set(ids) <= DOCUMENTS.keys()
        keys = [(np.float32(score), name.encode()) for name, score in ranking]
        assert keys == sorted(keys, reverse=True)


def test_a_shallower_ranking_is_a_prefix_of_a_deeper_one(bed):
    deep = rankings(bed.job(EvaluationOptions(depth=5, measures=("RR@5",))))
    flat = rankings(bed.job(EvaluationOptions(depth=2, measures=("RR@2",))))
    assert flat == {query: ranking[:2] for query, ranking in deep.items()}


def test_the_document_of_the_query_is_left_out_where_the_collection_says_so(bed):
    kept, dropped = rankings(bed.job()), rankings(bed.job(metadata=SELF))
    assert "q3" in [name for name, _ in kept["q3"]]
    others = [row for row in kept["q3"] if row[0] != "q3"]
    if KINDS[bed.kind].has_members:  # whose members rank without it, so that ranks and scores move
        assert {name for name, _ in dropped["q3"]} == {name for name, _ in others}
    else:
        assert dropped["q3"] == others


def test_the_protocol_is_applied_to_whatever_a_search_returns(bed, monkeypatch):
    """A kind that forgets the protocol's exclusions and depth gives the same result."""
    if KINDS[bed.kind].has_members:
        pytest.skip("its members rank without what the protocol excludes")
    job = bed.job(EvaluationOptions(depth=3, measures=("RR@3",)), metadata=SELF)
    expected = rankings(job)
    plain = bed.job(EvaluationOptions(depth=6, measures=("RR@3",)))
    run, statistics = plain.retriever.search(plain.dataset, 6)
    monkeypatch.setattr(type(job.retriever), "search", lambda *_: (run, statistics))
    assert rankings(job) == expected
    assert len(apply_protocol(run, job.dataset, 1)) == len(run.query_ids)


def test_the_recipe_names_the_kind_and_the_name_in_results_changes_no_fingerprint(bed):
    model = bed.load()
    assert model.recipe.kind == bed.kind
    renamed = model.with_name("another")
    assert renamed.name == renamed.recipe.model == "another"
    assert renamed.recipe.fingerprint == model.recipe.fingerprint


GIVEN: dict[str, object] = {
    "dtype": "bfloat16",
    "max_query_tokens": 3,
    "max_document_tokens": 3,
    "query_prompt": "find: ",
    "store_dtype": "float16",
    "dimensions": 8,
    "precision": "int8",
    "rescore": "3",
    "adapter": "missing-adapter",
}
SEARCHES = {
    "index": EvaluationOptions(index=IndexSpec.parse("HNSW8")),
    "view": EvaluationOptions(view=View(normalize=True)),
    "concurrency": EvaluationOptions(concurrency=2),
    "passages": EvaluationOptions(passages="#"),
    "timeout": EvaluationOptions(timeout=5.0),
}


def test_all_options_of_models_and_searches_are_tried_here():
    assert {*GIVEN, *SEARCHES} >= OF_VECTORS | OF_TEXTS
    assert {*GIVEN, *SEARCHES} >= frozenset().union(*(kind.honours for kind in KINDS.values()))


@pytest.mark.parametrize("option", GIVEN)
def test_an_option_changes_the_fingerprint_or_is_refused_by_name(bed, option):
    if option == "query_prompt" and ".py:" in bed.example.name:
        with pytest.raises(BenchError, match="prompts cannot be set"):  # code of one file
            bed.load(query_prompt="find: ")
    elif option not in KINDS[bed.kind].honours:
        with pytest.raises(BenchError, match=f"{option} cannot be set for"):
            bed.load(**{option: GIVEN[option]})
    elif option == "adapter":
        with pytest.raises(BenchError, match="missing-adapter"):
            bed.load(adapter="missing-adapter")
    elif option == "dtype" and not bed.load().recipe.traits.is_network:
        with pytest.raises(BenchError, match="dtype cannot be set"):  # code of one file
            bed.load(dtype="bfloat16")
    else:
        changed = bed.load(**{option: GIVEN[option]}).recipe
        assert changed.fingerprint != bed.load().recipe.fingerprint


@pytest.mark.parametrize("option", SEARCHES)
def test_an_option_of_the_search_is_honoured_or_refused_by_name(bed, option):
    if option in KINDS[bed.kind].honours:
        job = bed.job(SEARCHES[option])
        assert job.model.options == SEARCHES[option]
    else:
        with pytest.raises(BenchError, match=f"{option} cannot be set for"):
            bed.job(SEARCHES[option])


def test_only_a_kind_with_vectors_has_an_encoder_and_builds_an_index(bed):
    job = bed.job(
        EvaluationOptions(index=IndexSpec.parse("Flat")) if KINDS[bed.kind].makes_vectors else PLAIN
    )
    if KINDS[bed.kind].makes_vectors:
        assert job.retriever.require_encoder().dim == job.recipe.dim
        assert job.retriever.build_index(job.dataset).checked().documents == len(DOCUMENTS)
    else:
        for ask in (job.retriever.require_encoder, lambda: job.retriever.build_index(job.dataset)):
            with pytest.raises(BenchError, match="makes no vectors"):
                ask()


def test_vectors_rank_by_their_inner_products(bed):
    if not KINDS[bed.kind].makes_vectors:
        pytest.skip("compared with bm25s in tests/retrievers/encoders/test_bm25.py")
    job = bed.job()
    encoder, ids = job.retriever.require_encoder(), list(DOCUMENTS)
    asked, (titles, texts) = list(QUERIES.values()), zip(*DOCUMENTS.values(), strict=True)
    if KINDS[bed.kind].reads_ids:
        asked, titles, texts = list(QUERIES), ("",) * len(ids), tuple(ids)
    queries = encoder.encode_queries(asked).astype(np.float64)
    documents = encoder.encode_documents(titles, texts)
    scores = (queries @ documents.T.astype(np.float64)).astype(np.float32)
    by_query = dict(zip(QUERIES, scores, strict=True))
    for query, found in rankings(job).items():
        named = zip(by_query[query], ids, strict=True)
        pairs = sorted(((score, name.encode(), name) for score, name in named), reverse=True)
        assert [name for name, _ in found] == [name for _, _, name in pairs]
        np.testing.assert_allclose([s for _, s in found], [s for s, _, _ in pairs], atol=1e-6)


def test_check_estimates_memory_and_refuses_too_little(bed):
    job = bed.job()
    assert job.memory_bytes > 0
    poor = replace(bed.workspace, max_memory=1_000_000)
    with pytest.raises(BenchError, match=r"needs .* the budget is 1MB"):
        poor.prepare(job.opened, bed.load())
