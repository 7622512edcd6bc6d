"""A retriever, a collection and a search that are small enough to look at every number."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from foundation.arrays import Int64Array
from retrievers.encoders.transformer import open_encoder
from retrievers.index.hits import Hits
from retrievers.models.resolve import Model, resolve_model
from retrievers.training.finetune.training_data import MinedHits, TrainingSet
from retrievers.training.preset import FINETUNE_PRESETS, Finetuning
from tests.support import tiny_checkpoints as tiny


@dataclass(frozen=True)
class ListedDocuments:
    """Documents in memory."""

    titles: Sequence[str]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    def read(self, rows: Int64Array) -> tuple[list[str], list[str]]:
        """Titles and texts of the rows, in their order."""
        return [self.titles[row] for row in rows], [self.texts[row] for row in rows]


WORDS = tiny.WORDS[:7]
TEXTS = [f"{one} {other} the {one}" for one in WORDS for other in WORDS if one != other]
TITLES = ["" if row % 3 else text.split()[0] for row, text in enumerate(TEXTS)]
DOCUMENTS = ListedDocuments(TITLES, TEXTS)
QUERIES = [f"{one} of {other}" for one, other in zip(WORDS, WORDS[1:] + WORDS[:1], strict=True)]


def examples(count: int = 7) -> TrainingSet:
    """A query for each word; relevant are the first two documents that begin with it."""
    rows = [[row for row, text in enumerate(TEXTS) if text.startswith(word)] for word in WORDS]
    return TrainingSet(
        queries=tuple(QUERIES[:count]),
        positives=tuple(np.array(own[:2]) for own in rows[:count]),
        documents=DOCUMENTS,
        trained_on=("toy",),
    )


def model(folder: Path, seed: int = 0, **card: Any) -> Model:
    """A tiny BERT with a card of its own."""
    tiny.write_bert(folder / "start", seed=seed, initializer_range=0.1)
    fields = {"checkpoint": "start", "pooling": "cls"} | card
    return resolve_model(str(tiny.write_card(folder / "start.toml", **fields)))


def preset(text: str = "", steps: int = 6, batch_size: int = 3) -> Finetuning:
    """A preset with TOML of its own; tables come last."""
    head = f'title = "test"\nsteps = {steps}\nbatch_size = {batch_size}\n'
    return FINETUNE_PRESETS.parse((head + text).encode(), "test")


MINED = """
hard_negatives = 2
[[rounds]]
sources = ["model"]
depth = 12
"""


@dataclass
class Search:
    """Scores every document by brute force; keeps who asked."""

    training: TrainingSet = field(default_factory=examples)
    asked: list[str] = field(default_factory=list)

    def __call__(self, model: Model | None, depth: int) -> MinedHits:
        """The best by inner product; for BM25 the documents as they lie."""
        self.asked.append(model.card.name if model else "bm25")
        count = len(self.training)
        if model is None:
            scores = -np.arange(len(TEXTS), dtype=np.float32)[None].repeat(count, 0)
            hits = ranked(scores, self.training, depth).hits
            return MinedHits(hits, np.full(count, np.inf, np.float32))
        encoder = open_encoder(model, "cpu")
        documents = encoder.encode_documents(TITLES, TEXTS)
        scores = encoder.encode_queries(list(self.training.queries)) @ documents.T
        return ranked(scores, self.training, depth)


def ranked(scores: Any, training: TrainingSet, depth: int) -> MinedHits:
    """What a search with these scores ``(q, documents)`` finds."""
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    lowest = [row[own].min() for row, own in zip(scores, training.positives, strict=True)]
    hits = Hits(np.take_along_axis(scores, rows, axis=1), rows.astype(np.int64))
    return MinedHits(hits, np.array(lowest, np.float32))


def first_words_found(folder: Path) -> float:
    """Share of the queries whose best document begins with their first word."""
    encoder = open_encoder(resolve_model(str(folder)), "cpu")
    scores = encoder.encode_queries(QUERIES) @ encoder.encode_documents(TITLES, TEXTS).T
    best = [TEXTS[row] for row in scores.argmax(axis=1)]
    right = [text.split()[0] == query.split()[0] for text, query in zip(best, QUERIES, strict=True)]
    return float(np.mean(right))
