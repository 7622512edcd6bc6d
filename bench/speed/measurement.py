"""Cost of a model on this machine: phases, throughput, latency, indexes, growth, races.

Every timing has one pass that is not counted, then repeats; GPUs are idle at both ends of a
clock. Tools that are compared take turns over the same texts and weights.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np

from bench import __version__
from bench.evaluate.encode_documents import sample_documents
from bench.evaluate.estimate import measure_speed
from bench.evaluate.pipeline import conditions_here, search_device
from bench.speed.encode import Contestant, Ours, Say, race_encoders
from bench.speed.growth import encode_growth, run_growth
from bench.speed.machine import peak_bytes, processor_name
from bench.speed.peers.job import Job
from bench.speed.phases import measure_phases
from bench.speed.race import PROGRAMS, race
from bench.speed.records import Growth, IndexPoint, Latency, Phases, Race, SpeedReport, Throughput
from bench.speed.search import compare_indexes, latencies, search_growth, stand_ins
from bench.speed.texts import CONSTANT_TOKENS, Texts, natural, of_length
from bench.speed.tools import (
    DEFAULT_BATCH,
    OTHER_BATCHES,
    SENTENCE_TRANSFORMERS,
    sentence_transformers,
)
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from retrievers.encoders.protocol import Encoder
from retrievers.models.model import Model

DOCUMENTS = (64, 20_000)  # fewest and most of one sample
GROWTH_REPEATS = 3
SAMPLE = 500  # texts whose mean length decides how many are encoded
RUNS_ARE_LONGER = 4  # a process's start is not to hide what grows
REAL = 1000  # the same whatever the speed: recall compares between reports
QUERIES = 200
PROBE_S = 2.0


@dataclass(frozen=True)
class SpeedPlan:
    """The parts to measure, their sizes, and the time for them.

    Attributes:
        parts: of phases, encode, latency, indexes and growth.
        repeats: samples of each timing.
        seconds: about how long one sample of encoding takes.
        rows: of the corpus that latency, indexes and the growth of search are measured over.
        rounds: of a race from end to end.
        limit: documents of each collection that is raced on; None for all.
        against: other tools.
    """

    parts: tuple[str, ...]
    repeats: int = 5
    seconds: float = 3.0
    rows: int = 30_000
    rounds: int = 1
    limit: int | None = None
    against: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Subject:
    """One model on one machine, about to be measured.

    Attributes:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        encoder: with the prompts for ``source``.
        source: a collection whose texts are used.
        place: folder for temporary files: writing vectors is part of what is measured.
        arguments: of ``run`` for this model.
        job: weights and settings for processes of a race.
    """

    model: Model
    encoder: Encoder
    device: str
    source: Dataset
    place: Path
    arguments: tuple[str, ...]
    job: Job

    @cached_property
    def texts(self) -> list[str]:
        """Documents of the source in a seeded order, without titles."""
        _, texts = sample_documents(self.source.corpus, len(self.source.corpus))
        order = np.random.default_rng(0).permutation(len(texts)).tolist()
        return [texts[row] for row in order]

    @cached_property
    def tokens_per_s(self) -> float:
        """Speed in a short probe, by which the size of samples is chosen; it loads the weights."""
        return measure_speed(self.encoder, self.source.corpus, PROBE_S).tokens_per_s

    @cached_property
    def real(self) -> tuple[Float32Array, Float32Array]:
        """Vectors of some documents and queries of the source, float32 ``(m, dim)``."""
        texts = self.texts[:REAL]
        documents = self.encoder.encode_documents([""] * len(texts), texts)
        return documents, self.encoder.encode_queries(self.queries)

    @property
    def queries(self) -> list[str]:
        """Some real queries."""
        return list(self.source.queries.texts[:QUERIES])

    def documents_in(self, seconds: float, tokens: float) -> int:
        """Number of documents of a mean length, in tokens, that are encoded in a time."""
        fewest, most = DOCUMENTS
        return min(max(fewest, round(self.tokens_per_s * seconds / tokens)), most)


def measure(subject: Subject, plan: SpeedPlan, races: Sequence[Dataset], say: Say) -> SpeedReport:
    """Race on each collection, then measure all parts of a plan.

    Args:
        races: collections of the end-to-end race.
        say: told what comes next.

    Raises:
        BenchError: a tool fails, or a collection cannot be raced on.
    """
    parts = plan.parts
    load = os.getloadavg()[0]
    # First, since other tools may fail: then nothing else has been measured in vain.
    finished = tuple(_race(subject, plan, dataset, say) for dataset in races)
    return SpeedReport(
        model=subject.model.card.name,
        fingerprint=subject.model.recipe.fingerprint,
        recipe=subject.model.recipe,
        conditions=conditions_here(subject.device),
        processor=processor_name(),
        torch_threads=subject.job.threads,
        libraries={tool: version(tool) for tool in plan.against},
        load=load,
        repeats=plan.repeats,
        phases=_phases(subject, plan, say) if "phases" in parts else None,
        throughput=_throughput(subject, plan, say) if "encode" in parts else (),
        latency=_latency(subject, plan, say) if "latency" in parts else (),
        indexes=_indexes(subject, plan, say) if "indexes" in parts else (),
        growth=_growth(subject, plan, say) if "growth" in parts else (),
        races=finished,
        peak_bytes=peak_bytes(),
    )


def _phases(subject: Subject, plan: SpeedPlan, say: Say) -> Phases:
    mean = float(natural(subject.encoder, "", subject.texts[:SAMPLE]).tokens.mean())
    documents = subject.documents_in(plan.seconds, mean)
    say(f"phases of whole evaluations, {documents:,} documents")
    return measure_phases(
        subject.model, subject.device, subject.source, documents, plan.repeats, subject.place
    )


def _throughput(subject: Subject, plan: SpeedPlan, say: Say) -> tuple[Throughput, ...]:
    """All tools over documents of each length, by turns."""
    rows: list[Throughput] = []
    with ExitStack() as stack:
        contestants: list[Contestant] = [Ours(subject.encoder, __version__)]
        if SENTENCE_TRANSFORMERS in plan.against:
            for size in (DEFAULT_BATCH[SENTENCE_TRANSFORMERS], *OTHER_BATCHES):
                peer = sentence_transformers(subject.job, size)
                contestants.append(stack.enter_context(peer))
        for texts in _workloads(subject, plan.seconds):
            say(f"encoding {len(texts.texts):,} documents: {texts.name}")
            dtype = subject.model.recipe.dtype
            rows += race_encoders(contestants, texts, plan.repeats, dtype, say)
    return _with_peak_shares(rows, subject)


def _with_peak_shares(rows: Sequence[Throughput], subject: Subject) -> tuple[Throughput, ...]:
    """The rows with their shares of the peak, where the model's dense layers are known."""
    recipe, layers = subject.model.recipe, getattr(subject.encoder, "dense_layers", None)
    if not layers or recipe.backend in ("int8", "int7"):  # faster than products in float32
        return tuple(rows)
    from bench.speed.products import seconds_per_token

    least = seconds_per_token(layers, recipe.dtype, subject.device)

    def with_share(row: Throughput) -> Throughput:
        spent = row.processor_s if subject.device == "cpu" else row.seconds
        share = row.lengths.tokens * least / spent.median if spent else None
        return msgspec.structs.replace(row, peak_share=share)

    return tuple(map(with_share, rows))


def _workloads(subject: Subject, seconds: float) -> Iterator[Texts]:
    """Documents of constant lengths that the model reads whole, then real ones."""
    encoder, texts = subject.encoder, subject.texts
    for tokens in CONSTANT_TOKENS:
        if tokens <= encoder.recipe.max_document_tokens:
            yield of_length(encoder, texts, subject.documents_in(seconds, tokens), tokens)
    mean = float(natural(encoder, "", texts[:SAMPLE]).tokens.mean())
    name = f"as in {subject.source.name}"
    yield natural(encoder, name, texts[: subject.documents_in(seconds, mean)])


def _latency(subject: Subject, plan: SpeedPlan, say: Say) -> tuple[Latency, ...]:
    say(f"latency of single queries over {plan.rows:,} vectors")
    documents, _, _ = _corpus(subject, plan.rows)
    device = search_device(subject.device)
    return latencies(subject.encoder, subject.queries, documents, device)


def _indexes(subject: Subject, plan: SpeedPlan, say: Say) -> tuple[IndexPoint, ...]:
    say(f"indexes over {plan.rows:,} vectors")
    documents, queries, origin = _corpus(subject, plan.rows)
    device = search_device(subject.device)
    return compare_indexes(documents, queries, plan.repeats, device, origin)


def _corpus(subject: Subject, rows: int) -> tuple[Float32Array, Float32Array, str]:
    """Vectors of documents and of queries, float32 ``(rows, dim)``, and where they come from."""
    real, queries = subject.real
    name = subject.source.name
    if len(real) >= rows:
        return real[:rows], queries, f"documents of {name}"
    origin = f"mixtures of two of {len(real):,} documents of {name}, with noise"
    return stand_ins(real, rows), queries, origin


def _growth(subject: Subject, plan: SpeedPlan, say: Say) -> tuple[Growth, ...]:
    repeats = min(plan.repeats, GROWTH_REPEATS)
    tokens = round(subject.tokens_per_s * plan.seconds)
    say("growth of encoding")
    encoding = encode_growth(subject.encoder, subject.texts, tokens, repeats)
    say("growth of search")
    documents, queries, _ = _corpus(subject, plan.rows)
    searching = search_growth(documents, queries, repeats, search_device(subject.device))
    say("growth of whole runs, each in a fresh process")
    runs = run_growth(
        subject.encoder,
        subject.texts,
        RUNS_ARE_LONGER * tokens,
        repeats,
        subject.job,
        subject.arguments,
        subject.place,
    )
    return (*encoding, *searching, *runs)


def _race(subject: Subject, plan: SpeedPlan, dataset: Dataset, say: Say) -> Race:
    tools = [tool for tool in plan.against if tool in PROGRAMS]
    say(f"{dataset.name} from end to end: {', '.join(['bench', *tools])}")
    prompts = subject.model.recipe.for_dataset(dataset.name).prompts
    job = replace(subject.job, query_prompt=prompts.query, document_prompt=prompts.document)
    return race(
        dataset,
        job,
        tools,
        subject.arguments,
        plan.rounds,
        plan.limit,
        subject.place,
        say,
    )
