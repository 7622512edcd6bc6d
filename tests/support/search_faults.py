"""Faults of a search system that are planted one by one, and what the ledger says of them."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bench.comparing.statistics import Resampling
from bench.evaluation.encoding import encode_documents
from bench.evaluation.retriever import Retriever
from bench.evaluation.scoring import parse_measure
from bench.explain.ledger import Ledger, compare_stages
from bench.explain.question import Question
from bench.explain.stages import Examination, examine
from bench.explain.system import StoredSystem
from bench.requests.outcomes import ExitCode
from bench.runner.workspace import Workspace
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Qrels
from retrievers.encoders.objects import join_titles
from retrievers.models.settings import ModelSettings
from tests.support.collections import write_collection
from tests.support.search_systems import Chroma, Encode, Postgres, Sqlite
from tests.support.tiny_checkpoints import write_bert, write_card

DOCUMENTS, QUERIES, WORDS = 400, 100, 150


@dataclass(frozen=True)
class World:
    """A collection, the checkpoint of a system, and what its faults need.

    Attributes:
        plain: the checkpoint without its query prompt.
        other: another checkpoint of the same dimension.
        measures: of the ledger.
        text_cut, query_cut: characters after which texts and queries are cut.
    """

    workspace: Workspace
    dataset: Dataset
    model: Retriever
    plain: Retriever
    other: Retriever
    measures: tuple[str, ...]
    text_cut: int
    query_cut: int

    @cached_property
    def question(self) -> Question:
        return Question(self.model, [self.dataset], self.workspace.dataset, "cpu")

    @property
    def depth(self) -> int:
        """Documents of the deepest measure."""
        return max(parse_measure(name).documents for name in self.measures)

    @cached_property
    def ids(self) -> list[str]:
        return self.dataset.corpus.ids.to_pylist()

    @cached_property
    def vectors(self) -> np.ndarray:
        """Vectors of the documents, float32 ``(n, dim)``."""
        return self._encode_documents(self.model)

    @cached_property
    def others(self) -> np.ndarray:
        """Their vectors of the other checkpoint."""
        return self._encode_documents(self.other)

    @cached_property
    def cut(self) -> np.ndarray:
        """Their vectors if texts are cut."""
        texts = join_titles(*self.dataset.corpus.documents_at(np.arange(len(self.ids))))
        cut = [text[: self.text_cut] for text in texts]
        return self.model.require_encoder().encode_documents([""] * len(cut), cut)

    @cached_property
    def encode(self) -> Encode:
        return self._encode_queries(self.model)

    @cached_property
    def without_prompt(self) -> Encode:
        return self._encode_queries(self.plain)

    def _encode_queries(self, model: Retriever) -> Encode:
        encode = remember(model.require_encoder().encode_queries)
        encode(list(self.dataset.queries.texts))  # together, which is faster
        return encode

    def _encode_documents(self, model: Retriever) -> np.ndarray:
        store = self.workspace.store
        vectors = encode_documents(self.dataset, model.require_encoder(), store)
        return vectors.rows(np.arange(len(self.ids)))


def remember(encode: Encode) -> Encode:
    """Encode each text once."""
    vectors = dict[str, np.ndarray]()

    def encode_new(texts: list[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in vectors]
        vectors.update(zip(new, encode(new) if new else [], strict=True))
        return np.stack([vectors[text] for text in texts])

    return encode_new


def make_world(folder: Path) -> World:
    """Short texts of random letters, and small networks with random weights."""
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
    model, other = (workspace.load(str(folder / f"{name}.toml")) for name in ("tiny", "other"))
    plain = workspace.load(str(folder / "tiny.toml"), ModelSettings(query_prompt=""))
    dataset = workspace.dataset(str(folder / "words"))
    return World(workspace, dataset, model, plain, other, ("R@50", "nDCG@10"), 20, 8)


@dataclass
class Plan:
    """How a system is filled and searched. A fault changes it."""

    world: World
    vectors: np.ndarray
    encode: Encode
    kept: np.ndarray
    scales: np.ndarray | float = 1.0
    metric: str = "cosine"
    kind: str = "vector"
    index: str = "hnsw"
    settings: dict[str, int] = field(default_factory=lambda: {"hnsw.ef_search": 200})
    extra: list[int] = field(default_factory=list)
    after: set[str] = field(default_factory=set)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def some(self, share: float) -> np.ndarray:
        """Random rows of documents."""
        count = round(share * len(self.vectors))
        return self.rng.choice(len(self.vectors), count, replace=False)


# A fault changes the plan and returns what the name of its row contains.


def missing(plan: Plan) -> str:
    rows = plan.some(0.2)
    plan.kept[rows] = False
    return f"{len(rows):,} documents are missing"


def left_over(plan: Plan) -> str:
    plan.extra = plan.some(0.375).tolist()
    return f"{len(plan.extra):,} documents that the collection lacks"


def stale_model(plan: Plan) -> str:
    rows = plan.some(0.3)
    plan.vectors[rows] = plan.world.others[rows]
    return "vectors of another model"


def _unscaled(plan: Plan, metric: str) -> str:
    plan.scales = plan.rng.uniform(0.5, 2, (len(plan.vectors), 1))
    plan.metric = metric
    return f"search by {metric} of vectors"


def inner_product(plan: Plan) -> str:
    return _unscaled(plan, "inner product")


def distance(plan: Plan) -> str:
    return _unscaled(plan, "L2 distance")


def few_candidates(plan: Plan) -> str:
    plan.settings = {"hnsw.ef_search": 12}
    return f"the search stops early: it returns 12 of {plan.world.depth} rows"


def one_probe(plan: Plan) -> str:
    plan.index, plan.settings = "ivfflat (lists = 20)", {"ivfflat.probes": 1}
    return "approximate search"


def filter_after(plan: Plan) -> str:
    plan.after = {plan.world.ids[row] for row in plan.some(0.25)}
    return "filter after the search"


def no_prompt(plan: Plan) -> str:
    plan.encode = plan.world.without_prompt
    return "query vectors: query prompt missing"


def cut_queries(plan: Plan) -> str:
    encode, length = plan.encode, plan.world.query_cut
    plan.encode = lambda texts: encode([text[:length] for text in texts])
    return f"query vectors: queries cut after {length} characters"


def cut_texts(plan: Plan) -> str:
    plan.vectors[:] = plan.world.cut
    return f"texts cut after {plan.world.text_cut} characters"


def float16(plan: Plan) -> str:
    plan.kind = "halfvec"
    return ""  # it is harmless, so no row has a loss


FAULTS: dict[str, Callable[[Plan], str]] = {
    "missing": missing,
    "left over": left_over,
    "stale model": stale_model,
    "not normalised with inner product": inner_product,
    "L2 for cosine": distance,
    "ef_search below k": few_candidates,
    "lists with one probe": one_probe,
    "filter after search": filter_after,
    "prompt left out": no_prompt,
    "queries cut": cut_queries,
    "text cut at ingestion": cut_texts,
    "float16": float16,
}
NEVER_TOGETHER = (
    {"not normalised with inner product", "L2 for cosine"},
    {"ef_search below k", "lists with one probe"},
)
PAIRS = [
    pair
    for pair in itertools.combinations([name for name in FAULTS if name != "float16"], 2)
    if set(pair) not in NEVER_TOGETHER
]
ABSENT_IN_CHROMA = ("lists with one probe", "float16", "ef_search below k")


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


def planned(world: World, faults: Sequence[str]) -> tuple[Plan, list[str]]:
    """A plan with faults, and what the names of their rows contain."""
    every = np.ones(len(world.ids), bool)
    plan = Plan(world, world.vectors.copy(), world.encode, every)
    return plan, [FAULTS[name](plan) for name in faults]


def open_system(plan: Plan, where: str | int | None) -> StoredSystem:
    """Fill a system: a server at an address or port, or None for a database in this process."""
    if where is None:
        system: Any = Sqlite(plan.encode, plan.metric)
    elif isinstance(where, str):
        system = Postgres(where, plan.encode, plan.metric)
    else:
        system = Chroma(where, plan.encode, plan.metric)
    return StoredSystem.open(fill(plan, system), trust_code=False)


@dataclass(frozen=True)
class Finding:
    """The ledger of a system with planted faults.

    Attributes:
        expected: what the names of their rows contain.
    """

    faults: Sequence[str]
    expected: Sequence[str]
    ledger: Ledger

    @property
    def largest(self) -> list[str]:
        """Names of rows, those with the largest term of any measure first."""
        rows = sorted(
            self.ledger.rows, key=lambda row: -max(abs(term.difference) for term in row.terms)
        )
        return [row.name for row in rows]

    @property
    def named(self) -> int:
        """Number of faults named by the largest terms in a row; 1 for a harmless fault."""
        harmful = list(filter(None, self.expected))
        if not harmful:
            return int(self.ledger.exit_code == ExitCode.OK)
        right = [any(each in name for each in harmful) for name in self.largest[: len(harmful)]]
        return right.index(False) if False in right else len(right)


def find_faults(world: World, where: str | int | None, faults: Sequence[str] = ()) -> Finding:
    """Plant faults, and make the ledger."""
    plan, expected = planned(world, faults)
    system = open_system(plan, where)
    ledger = examine(system, world.model, world.dataset, world.question, world.measures)
    return Finding(faults, expected, ledger)


def resampled_exit_codes(world: World, where: str, samples: int, ef_search: int) -> list[int]:
    """Exit codes for a healthy system of float16 vectors, on samples of 60 % of the queries."""
    plan, _ = planned(world, ["float16"])
    plan.settings = {"hnsw.ef_search": ef_search}
    dataset, rng = world.dataset, np.random.default_rng(0)
    system = open_system(plan, where)
    stages = Examination(system, world.model, dataset, world.depth, world.question).stages()
    rows, codes = list(dataset.qrels), []
    judged_queries = sorted({query for query, _, _ in rows})
    for seed in range(samples):
        count = round(0.6 * len(judged_queries))
        queries = set(rng.choice(judged_queries, count, replace=False).tolist())
        judged, relevant, grades = zip(*(row for row in rows if row[0] in queries), strict=True)
        part = replace(dataset, qrels=Qrels(judged, relevant, np.array(grades, np.int32)))
        resampling = Resampling(resamples=999, seed=seed)
        ledger = compare_stages(
            part, stages, world.measures, world.depth, resampling, system="healthy"
        )
        codes.append(int(ledger.exit_code))
    return codes
