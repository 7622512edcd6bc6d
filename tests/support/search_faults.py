"""Faults of a search system that are planted one by one, on a small collection of short texts."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.evaluation.retriever import Retriever
from bench.explain.question import Question
from bench.explain.stages import examine
from bench.explain.system import StoredSystem
from bench.runner.workspace import Workspace
from datasets_cfg.dataset import Dataset
from retrievers.models.settings import ModelSettings
from tests.support.collections import write_collection
from tests.support.search_systems import Chroma, Postgres, Sqlite
from tests.support.tiny_checkpoints import write_bert, write_card

DOCUMENTS, QUERIES, WORDS = 400, 100, 150
CUT, QUERY_CUT = 20, 8  # characters


@dataclass(frozen=True)
class World:
    """A collection, the checkpoint of a system, and vectors for its faults.

    Attributes:
        vectors: of the checkpoint, ``(n, dim)``, as the other arrays.
        others: of another checkpoint.
        cut: of texts that were cut.
    """

    folder: Path
    dataset: Dataset
    model: Retriever
    question: Question
    ids: list[str]
    vectors: np.ndarray
    others: np.ndarray
    cut: np.ndarray
    without_prompt: Callable[[list[str]], np.ndarray]


def make_world(folder: Path) -> World:
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.choice([1, 2, 3]))) for _ in range(WORDS)]
    documents = {
        f"d{row:03}": ("", " ".join(rng.choices(words, k=rng.choice([5, 8, 12, 18]))))
        for row in range(DOCUMENTS)
    }
    queries, qrels = dict[str, str](), dict[tuple[str, str], int]()
    for number in range(QUERIES):
        document = rng.choice(list(documents))
        text = documents[document][1].split()
        asked = rng.sample(text, min(len(text), rng.choice([3, 4, 5, 8])))
        queries[f"q{number:03}"] = " ".join(asked)
        qrels[f"q{number:03}", document] = 1
    write_collection(folder / "words", documents, queries, qrels, 'measures = ["R@50"]\n')
    card = {"pooling": "mean", "normalize": True, "similarity": "cos", "max_query_tokens": 48}
    card |= {"max_document_tokens": 48, "prompts": {"query": "alpha ", "document": "beta "}}
    for name, seed in (("tiny", 0), ("other", 9)):
        write_bert(folder / name, seed=seed, hidden_size=64, initializer_range=0.05)
        write_card(folder / f"{name}.toml", checkpoint=name, **card)
    workspace = Workspace(folder / "cache")
    dataset = workspace.dataset(str(folder / "words"))
    model, other = (workspace.load(str(folder / f"{name}.toml")) for name in ("tiny", "other"))
    plain = workspace.load(str(folder / "tiny.toml"), ModelSettings(query_prompt=""))
    texts = [text for _, text in documents.values()]
    titles = [""] * len(texts)
    return World(
        folder,
        dataset,
        model,
        Question(model, [dataset], workspace.dataset, "cpu"),
        list(documents),
        model.require_encoder().encode_documents(titles, texts),
        other.require_encoder().encode_documents(titles, texts),
        model.require_encoder().encode_documents(titles, [text[:CUT] for text in texts]),
        plain.require_encoder().encode_queries,
    )


@dataclass
class Plan:
    """How a system is filled and searched. A fault changes it."""

    world: World
    vectors: np.ndarray
    encode: Callable[[list[str]], np.ndarray]
    kept: np.ndarray
    scales: np.ndarray | float = 1.0
    metric: str = "cosine"
    kind: str = "vector"
    index: str = "hnsw"
    settings: dict[str, int] = field(default_factory=lambda: {"hnsw.ef_search": 200})
    extra: list[int] = field(default_factory=list)
    after: set[str] = field(default_factory=set)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def some(self, count: int) -> np.ndarray:
        return self.rng.choice(len(self.vectors), count, replace=False)


def missing(plan: Plan) -> None:
    plan.kept[plan.some(80)] = False


def left_over(plan: Plan) -> None:
    plan.extra = plan.some(150).tolist()


def stale_model(plan: Plan) -> None:
    rows = plan.some(120)
    plan.vectors[rows] = plan.world.others[rows]


def _unscaled(plan: Plan, metric: str) -> None:
    plan.scales = plan.rng.uniform(0.5, 2, (len(plan.vectors), 1))
    plan.metric = metric


def inner_product(plan: Plan) -> None:
    _unscaled(plan, "inner product")


def distance(plan: Plan) -> None:
    _unscaled(plan, "L2 distance")


def few_candidates(plan: Plan) -> None:
    plan.settings = {"hnsw.ef_search": 12}


def one_probe(plan: Plan) -> None:
    plan.index, plan.settings = "ivfflat (lists = 20)", {"ivfflat.probes": 1}


def filter_after(plan: Plan) -> None:
    plan.after = {plan.world.ids[row] for row in plan.some(100)}


def no_prompt(plan: Plan) -> None:
    plan.encode = plan.world.without_prompt


def cut_queries(plan: Plan) -> None:
    encode = plan.encode
    plan.encode = lambda texts: encode([text[:QUERY_CUT] for text in texts])


def cut_texts(plan: Plan) -> None:
    plan.vectors[:] = plan.world.cut


def float16(plan: Plan) -> None:
    plan.kind = "halfvec"


# Each fault with what the name of its row must contain; a harmless one has no row.
FAULTS: dict[str, tuple[Callable[[Plan], None], str]] = {
    "missing": (missing, "80 documents are missing"),
    "left over": (left_over, "150 documents that the collection lacks"),
    "stale model": (stale_model, "vectors of another model"),
    "not normalised with inner product": (inner_product, "search by inner product of vectors"),
    "L2 for cosine": (distance, "search by L2 distance of vectors"),
    "ef_search below k": (few_candidates, "the search stops early: it returns 12 of 50"),
    "lists with one probe": (one_probe, "approximate search"),
    "filter after search": (filter_after, "filter after the search"),
    "prompt left out": (no_prompt, "query vectors: query prompt missing"),
    "queries cut": (cut_queries, "query vectors: queries cut after 8 characters"),
    "text cut at ingestion": (cut_texts, "texts cut after 20 characters"),
    "float16": (float16, ""),
}


def fill(plan: Plan, system: Any) -> Any:
    ids = [id_ for id_, kept in zip(plan.world.ids, plan.kept, strict=True) if kept]
    ids += [f"old-{plan.world.ids[row]}" for row in plan.extra]
    moved = 0.003 * plan.rng.normal(size=(len(plan.extra), plan.vectors.shape[1]))
    every = plan.vectors * plan.scales
    vectors = np.vstack([every[plan.kept], every[plan.extra] + moved])
    vectors = vectors.astype(np.float32)
    system.after = plan.after
    if isinstance(system, Postgres):
        system.store(ids, vectors, plan.kind)
        if plan.index:
            system.index(plan.index)
        for name, value in plan.settings.items():
            system.set(name, value)
    elif isinstance(system, Chroma):
        system.store(ids, vectors, ef_search=plan.settings["hnsw.ef_search"])
    else:
        system.store(ids, vectors)
    return system


def planned(world: World, faults: Sequence[str]) -> Plan:
    encoder = world.model.require_encoder()
    every = np.ones(len(world.ids), bool)
    plan = Plan(world, world.vectors.copy(), encoder.encode_queries, every)
    for name in faults:
        FAULTS[name][0](plan)
    return plan


def open_system(plan: Plan, where: str | int | None) -> Any:
    """A server's address or port, or None for a database in this process."""
    if isinstance(where, str):
        return Postgres(where, plan.encode, plan.metric)
    if isinstance(where, int):
        return Chroma(where, plan.encode, plan.metric)
    return Sqlite(plan.encode, plan.metric)


def ledger_of(world: World, where: str | int | None, faults: Sequence[str] = ()) -> Any:
    plan = planned(world, faults)
    system = StoredSystem.open(fill(plan, open_system(plan, where)), trust_code=False)
    return examine(system, world.model, world.dataset, world.question)


def largest(ledger: Any) -> str:
    """Name of the row with the largest term of any measure."""
    rows = sorted(ledger.rows, key=lambda row: -max(abs(t.difference) for t in row.terms))
    return rows[0].name
