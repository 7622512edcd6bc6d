"""Evaluation of one model on one collection: rank, apply the protocol, score.

`evaluate` runs a `Job`, which `bench.runner.workspace.Workspace.prepare` has checked. A `Retriever`
ranks.
"""

import hashlib
import logging
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from bench.evaluation.exact import search_device
from bench.evaluation.judging import apply_protocol, resolve_measures, score_run
from bench.evaluation.responses import check_run
from bench.evaluation.result_record import Conditions, Evaluation, Protocol, Result, Timings
from bench.evaluation.retriever import Retriever
from bench.evaluation.run_files import RunFile
from bench.evaluation.runs import Run
from bench.requests.evaluating import RunRequest
from bench.requests.fields import Request, describe_request
from datasets_cfg.dataset import Dataset, all_assumptions
from foundation.machine import library_threads, library_version, utc_now
from foundation.sources import PACKAGES as ALL_PACKAGES
from foundation.sources import loaded_files
from retrievers.encoders.protocol import PhaseTimer
from retrievers.models.card import Recipe
from retrievers.models.kinds import OF_SYSTEMS
from retrievers.training.engine.identity import find_training

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    *("torch", "transformers", "tokenizers", "faiss-cpu", "faiss-gpu", "numpy"),
    *("pystemmer", "ir-measures", "adapters", "peft"),
)
REQUESTED = ("depth", "recall_queries", *OF_SYSTEMS)  # options that a request has, too
# Code that makes vectors, rankings and scores, without commands, reports and decisions.
PACKAGES = ("foundation", "datasets_cfg", "retrievers", "bench/evaluation", "bench/store")


@dataclass(frozen=True)
class OpenDataset:
    """A collection that is ready for evaluation.

    Attributes:
        dataset: the collection.
        official: whether it is the published one.
        asked: fields of the request that opened it; empty for an object of Python.
    """

    dataset: Dataset
    official: bool | None
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the collection in results."""
        return self.dataset.name

    def protocol(self, depth: int | None = None, with_corpus: bool = True) -> Protocol:
        """Return the protocol, which two results on a collection must share to be compared.

        Args:
            depth: documents per query; None for the default.
            with_corpus: False if a run file is scored without the documents.
        """
        dataset, metadata = self.dataset, self.dataset.metadata
        has_corpus = with_corpus and dataset.has_documents
        return Protocol(
            collection=metadata.name,
            version=metadata.version,
            split=metadata.split,
            title_track=metadata.title_track,
            corpus_sha256=dataset.corpus.sha256 if has_corpus else "",
            queries_sha256=dataset.queries_sha256,
            qrels_sha256=dataset.qrels_sha256,
            exclude_self=bool(metadata.exclude_self),
            depth=depth or metadata.depth,
            official=self.official,
            overlay=dataset.overlay,
        )


@dataclass(frozen=True)
class Job:
    """The evaluation of one model on one collection, after all checks.

    Attributes:
        opened: the collection.
        model: what ranks, with its options, and without the prompts of a collection.
        measures: canonical names, the main measure first.
        memory_bytes: estimated peak memory of this process.
        stored: stored result of this evaluation, if there is one.
    """

    opened: OpenDataset
    model: Retriever
    measures: tuple[str, ...]
    memory_bytes: int = 0
    stored: Evaluation | None = None

    @property
    def dataset(self) -> Dataset:
        """The collection."""
        return self.opened.dataset

    @cached_property
    def protocol(self) -> Protocol:
        """Rules of the evaluation."""
        return self.opened.protocol(self.model.options.depth)

    @cached_property
    def retriever(self) -> Retriever:
        """The model with the prompts of this collection."""
        return self.model.for_dataset(self.dataset.name)

    @property
    def name(self) -> str:
        """Name of the model in results."""
        return self.model.name

    @property
    def recipe(self) -> Recipe:
        """Settings that determine the vectors."""
        return self.retriever.recipe

    @property
    def in_domain(self) -> bool:
        """True if the model was trained on the collection, or on its family."""
        return self.model.card.is_in_domain(self.dataset.name)

    @property
    def request(self) -> RunRequest | None:
        """Request that repeats the evaluation; None for objects of Python, and for a view."""
        options = self.model.options
        if not (self.opened.asked and self.model.asked) or options.view:
            return None
        return RunRequest(
            index=str(options.from_index or options.index),
            measure=options.measures or (),
            **{name: getattr(options, name) for name in REQUESTED},
            **self.opened.asked,
            **self.model.asked,
        )


def evaluate(job: Job) -> Evaluation:
    """Run a ``job``: rank and score."""
    dataset, retriever = job.dataset, job.retriever
    parameters = retriever.parameters()  # may fail, so not after hours of encoding
    run, statistics = retriever.search(dataset, job.protocol.depth)
    return _score_ranking(
        dataset,
        apply_protocol(run, dataset, job.protocol.depth),
        job.protocol,
        job.measures,
        statistics.timings,
        model=job.name,
        documents=len(dataset.corpus) if dataset.has_documents else None,
        index=retriever.index,
        index_recall=statistics.recall,
        recall_queries=retriever.recall_queries(dataset),
        in_domain=job.in_domain,
        recipe=job.recipe,
        fingerprint=job.recipe.fingerprint,
        preflight=statistics.preflight,
        conditions=current_conditions(retriever.resources.device, statistics.device, job.request),
        parameters=parameters,
        tokens_sha256=retriever.tokens_sha256,
        assumptions=all_assumptions(dataset),
        bytes_per_document=retriever.bytes_per_document,
        latency=statistics.latency,
        training=find_training(retriever.model),
    )


def evaluate_run(
    file: RunFile,
    name: str,
    opened: OpenDataset,
    measures: Sequence[str] | None,
    depth: int | None,
    request: Request | None = None,
) -> Evaluation:
    """Score a ranking of another program, and warn of what makes its scores mean something else.

    Args:
        file: the ranking, and the hash of its content, which identifies it.
        name: name of the run in results.
        opened: collection.
        measures: measures besides the collection's main one; None for the collection's.
        depth: documents per query; None for the collection's.
        request: request of the scoring; None if files do not suffice to repeat it.

    Raises:
        BenchError: the run has no documents, or no query or document of the collection.
    """
    dataset, protocol = opened.dataset, opened.protocol(depth, with_corpus=False)
    names = resolve_measures(dataset, measures, depth)
    notes = check_run(file.run, name, dataset, names)
    done = _score_ranking(
        dataset,
        apply_protocol(file.run, dataset, protocol.depth),
        protocol,
        names,
        Timings(),
        model=name,
        documents=None,
        index="",
        index_recall={},
        in_domain=False,
        recipe=None,
        fingerprint=file.sha256,
        preflight={"run_file": file.assumption} if file.assumption else {},
        conditions=current_conditions("cpu", request=request),
        assumptions=dict(dataset.assumptions),
    )
    if unanswered := done.scores.unanswered:
        about = f"{unanswered:,} of {done.record.queries:,} queries of {dataset.name}"
        notes.append(f"{about} have no document; they score 0")
    for note in notes:
        logger.warning("run %s: %s", name, note)
    return done


def _score_ranking(
    dataset: Dataset,
    run: Run,
    protocol: Protocol,
    names: Sequence[str],
    timings: Timings,
    **provenance: Any,
) -> Evaluation:
    """Score a ranking and return its evaluation, with ``provenance`` as fields of the result."""
    timer = PhaseTimer()
    with timer.phase("score_s"):
        scores, quality = score_run(dataset, run, names, protocol.depth)
    result = Result(
        main_measure=names[0],
        measures={name: scores.mean(name) for name in names},
        queries=len(scores.query_ids),
        unanswered=scores.unanswered,
        ignored=scores.ignored,
        protocol=protocol,
        timings=msgspec.structs.replace(timings, **timer.seconds),
        **quality,
        **provenance,
    )
    return Evaluation(result, scores, run)


@cache
def program_digest(root: Path = ROOT) -> str:
    """Return 16 digits of a hash of the source files and cards, or "" if there are none."""
    files = sorted(
        path
        for name in PACKAGES
        for path in (root / name).rglob("*")
        if path.suffix in (".py", ".toml")
    )
    content = hashlib.sha256()
    for path in files:
        source = path.read_bytes()
        content.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
        content.update(source)
    return content.hexdigest()[:16] if files else ""


def current_conditions(
    device: str, searched_on: str = "", request: Request | None = None
) -> Conditions:
    """Return the conditions of this machine and process, with the requested ``device``.

    ``searched_on`` names the device that searched; "" for the one that exact search uses.
    ``request`` is what is computed.
    """
    from bench import __version__

    commit = _run_git(ROOT, "rev-parse", "HEAD")
    changed = _run_git(ROOT, "status", "--porcelain", "--untracked-files=no")
    new = _run_git(ROOT, "ls-files", "--others", "--exclude-standard", "--", *ALL_PACKAGES)
    versions = {name: library_version(name) for name in LIBRARIES}
    return Conditions(
        time=utc_now(),
        bench=__version__,
        commit=commit,
        dirty=bool(changed or new),
        own_code=tuple(sorted({Path(path).name for path in loaded_files()})),
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        device=device,
        search_device=searched_on or search_device(device),
        threads=library_threads(),
        libraries={name: version for name, version in versions.items() if version},
        program=program_digest(),
        **describe_request(request),
    )


@cache
def _run_git(root: Path, *arguments: str) -> str:
    """Return the output of git in a checkout, or "" if there is none. It is cached."""
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
