"""A collection of some shards, a model for it, opened over one store."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch

from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.retriever import Retriever
from bench.runner.engines import EncodingTask
from bench.runner.workspace import Workspace
from bench.store.shards import SHARD_ROWS
from retrievers.models.settings import ModelSettings
from tests.support.collections import write_collection
from tests.support.tiny_checkpoints import WORDS, write_bert, write_card

SHARDS = 3


def several_shards(folder: Path) -> Path:
    """A collection whose documents fill some shards; many have the vector of another."""
    rng = np.random.default_rng(0)
    rows = SHARDS * SHARD_ROWS - SHARD_ROWS // 2
    drawn = rng.choice(WORDS, (rows, 6))
    documents = {
        f"d{row}": (str(row % 7), f"{' '.join(words)} {row}") for row, words in enumerate(drawn)
    }
    queries = {f"q{n}": " ".join(rng.choice(WORDS, 3)) for n in range(9)}
    return write_collection(folder, documents, queries, {(name, "d1"): 1 for name in queries})


def tiny_bert(folder: Path) -> Path:
    """The card of a checkpoint with random weights, in ``folder``."""
    write_bert(folder / "checkpoint", num_hidden_layers=2)
    return write_card(
        folder / "tiny.toml",
        name="tiny",
        checkpoint=str(folder / "checkpoint"),
        pooling="mean",
        normalize=True,
        max_query_tokens=16,
        max_document_tokens=16,
    )


class Bed:
    """A collection and a model, opened, with a cache of its own below ``folder``."""

    def __init__(self, folder: Path, collection: Path, model: str) -> None:
        self.workspace = Workspace(cache_dir=folder / "cache", device="cpu")
        self.opened: OpenDataset = self.workspace.open(str(collection))
        self.model: Retriever = self.workspace.load(model, ModelSettings(trust_code=True))
        self.encoder = self.model.for_dataset(self.opened.name).encoder
        assert self.encoder is not None
        self.corpus = self.opened.dataset.corpus

    @property
    def store(self):
        return self.workspace.store

    def missing(self) -> list[str]:
        return [batch.name for batch in self.plan().missing]

    @property
    def work(self) -> list[EncodingTask]:
        """What children of this process would encode."""
        return [EncodingTask(self.opened.name, self.corpus.folder, self.model.model)]

    def encode(self, advance=None):
        """Encode all that is missing, or wait for others who do."""
        return self.store.documents(self.encoder, self.corpus, self.plan(), advance)

    def encode_on_one_thread(self) -> None:
        """Encode as each of two workers does on two cores, with the same bytes."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self.encode()
        torch.set_num_threads(threads)

    def plan(self):
        return self.store.plan(self.encoder, self.corpus)

    def queries(self) -> np.ndarray:
        return self.store.queries(self.encoder, self.opened.dataset.queries.texts)

    def vectors(self) -> np.ndarray:
        stored = self.plan().vectors
        assert stored is not None
        return stored.rows(np.arange(len(self.corpus)))


def files_of(shards: Collection[str], store: Path) -> dict[str, bytes]:
    """Files of shards by name: what must not depend on who encoded them."""
    files = [path for path in sorted(store.glob("*/*")) if path.stem in shards]
    return {path.name: path.read_bytes() for path in files if path.suffix != ".lock"}
