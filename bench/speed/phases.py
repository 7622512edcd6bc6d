"""Where the time of whole evaluations goes, from opening the model to scores."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.evaluate.pipeline import Evaluation, Options, evaluate
from bench.speed.encode import spreads
from bench.speed.machine import timed
from bench.speed.race import export
from bench.speed.records import Phases, Spread
from bench.store import VectorStore
from datasets_cfg.dataset import Dataset, open_dataset
from retrievers.encoders.opening import open_encoder
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.model import Model


def measure_phases(
    model: Model, device: str, source: Dataset, documents: int, repeats: int, place: Path
) -> Phases:
    """Evaluate the first documents of a collection once uncounted, then ``repeats`` times.

    Each opens the model anew and has an empty vector store below ``place``: weights are read and
    vectors written every time; the libraries are imported the first time only.
    """
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        exported = export(source, Path(temporary) / "collection", documents)
        dataset = open_dataset(str(exported.folder), cache_dir=Path(temporary), download=False)
        dataset.corpus.check()  # built and read before the clock starts: not the model's work
        whole = _Whole(model, device, dataset, Path(temporary))
        cold_s, done = timed(lambda: whole.evaluate(0))
        walls, busy = [], []
        for number in range(1, repeats + 1):
            seconds, done = timed(lambda number=number: whole.evaluate(number))  # type: ignore[misc]
            walls.append(seconds)
            busy.append(_busy(done))
    return Phases(
        collection=source.name,
        documents=exported.documents,
        queries=exported.queries,
        tokens=done.result.timings.encoded_tokens,
        cold_s=cold_s,
        wall_s=Spread.of(walls),
        busy_s=spreads(busy),
    )


@dataclass(frozen=True)
class _Whole:
    """One evaluation that can be repeated from nothing."""

    model: Model
    device: str
    dataset: Dataset
    place: Path

    def evaluate(self, number: int) -> Evaluation:
        model = self.model.for_dataset(self.dataset.name)
        encoder = open_encoder(model, self.device)
        store = VectorStore(self.place / f"vectors-{number}")
        options = Options(IndexSpec.parse("flat"), device=self.device)
        return evaluate(self.dataset, model, encoder, store, options)


def _busy(done: Evaluation) -> Mapping[str, float]:
    """Seconds by kind of work; the stages stand in where an encoder has no clock."""
    spent = done.result.timings
    encoding = spent.encode_queries_s + spent.encode_documents_s
    busy = dict(spent.busy_s) if spent.busy_s else {"encode": encoding}
    busy.setdefault("search", spent.search_s)
    return {**busy, "score": spent.score_s}
