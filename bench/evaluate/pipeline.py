"""Texts become vectors, vectors become a ranking, a ranking becomes scores.

`evaluate` is the main job, for which `bench.workspace.Workspace.prepare` has checked everything.
The retriever encodes and searches (`bench.evaluate.retrieval`). No stage calls back, none changes
its input.
"""

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from bench.evaluate.judging import apply_protocol, make_protocol, resolve_measures, score_run
from bench.evaluate.retrieval import (
    EvaluationOptions,
    LoadedModel,
    Retriever,
    make_retriever,
    search_device,
)
from bench.evaluate.runs import Run
from bench.results.result import Conditions, Evaluation, Protocol, Result, Timings
from bench.store import VectorStore
from datasets_cfg.dataset import Dataset
from foundation.machine import library_version, utc_now
from retrievers.encoders.protocol import PhaseTimer
from retrievers.models.card import Card
from retrievers.models.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "faiss-cpu",
    "faiss-gpu",
    "numpy",
    "pystemmer",
    "ir-measures",
    "adapters",
    "peft",
)
# All that vectors, rankings and scores come from; commands, reports and decisions are left out.
PACKAGES = ("foundation", "datasets_cfg", "retrievers", "bench/evaluate", "bench/store")


@dataclass(frozen=True)
class OpenDataset:
    """A collection that is ready for evaluation; ``official`` where it is the published one."""

    dataset: Dataset
    official: bool

    @property
    def name(self) -> str:
        """Name of the collection, by which its results are known."""
        return self.dataset.name

    def protocol(self, depth: int | None = None) -> Protocol:
        """The protocol of evaluations; ``depth`` None for the collection's."""
        return make_protocol(self.dataset, depth, self.dataset.corpus.sha256, self.official)


@dataclass(frozen=True)
class Job:
    """The evaluation of one model on one collection, after all checks.

    Attributes:
        model: with the prompts of no collection.
        store: where vectors are kept.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        max_memory: bytes that this process may hold while it searches; None for most of what is
            free.
        measures: canonical names, the main one first.
        memory_bytes: of this process at its peak, by estimate.
        stored: the result of this evaluation, if there is one.
    """

    opened: OpenDataset
    model: LoadedModel
    options: EvaluationOptions
    store: VectorStore
    device: str
    max_memory: int | None
    measures: tuple[str, ...]
    memory_bytes: int = 0
    stored: Evaluation | None = None

    @property
    def dataset(self) -> Dataset:
        """The collection."""
        return self.opened.dataset

    @cached_property
    def protocol(self) -> Protocol:
        """The rules under which it is evaluated."""
        return self.opened.protocol(self.options.depth)

    @cached_property
    def prompted_model(self) -> LoadedModel:
        """The model with the prompts of this collection."""
        return self.model.for_dataset(self.dataset.name)

    @cached_property
    def retriever(self) -> Retriever:
        """What finds the documents."""
        return make_retriever(
            self.prompted_model, self.store, self.options, self.device, self.max_memory
        )

    @property
    def name(self) -> str:
        """Name of the model, by which its results are known."""
        return self.model.name

    @property
    def recipe(self) -> Recipe:
        """Everything that decides the vectors."""
        return self.prompted_model.model.recipe

    @property
    def in_domain(self) -> bool:
        """True if the model was trained on the collection, or on its family."""
        return in_domain(self.prompted_model.model.card, self.dataset.name)

    def with_model(self, model: LoadedModel) -> "Job":
        """This job with an encoder that works elsewhere, too; nothing else may differ."""
        return replace(self, model=model)


def evaluate(job: Job) -> Evaluation:
    """Evaluate one model on one collection: encode, search, score.

    Raises:
        BenchError: the model fails, or the files of the collection changed meanwhile.
    """
    dataset, retriever = job.dataset, job.retriever
    corpus = dataset.corpus
    checking = ThreadPoolExecutor(1).submit(corpus.check)
    parameters = retriever.parameters()  # before hours, lest it fail after them
    searched = retriever.search(dataset, job.protocol.depth)
    run = Run.from_hits(searched.hits, dataset.queries.ids, corpus.ids, corpus.tie_rank)
    evaluation = _score_ranking(
        dataset,
        run,
        job.protocol,
        job.measures,
        searched.timings,
        model=job.name,
        documents=len(corpus),
        index=retriever.index,
        index_recall=searched.recall,
        recall_queries=retriever.recall_queries(dataset),
        in_domain=job.in_domain,
        recipe=job.recipe,
        fingerprint=job.recipe.fingerprint,
        preflight=searched.preflight,
        conditions=current_conditions(job.device),
        parameters=parameters,
    )
    checking.result()
    return evaluation


def evaluate_run(
    run: Run,
    name: str,
    sha256: str,
    dataset: Dataset,
    measures: Sequence[str] | None,
    depth: int | None,
    official: bool,
) -> Evaluation:
    """Score a ranking that another program made; its documents are not looked for.

    Args:
        name: of the run in results.
        sha256: hash of its content, by which it is known.
        measures: besides the collection's main one; None for the collection's.
        depth: documents per query; None for the collection's.

    Raises:
        BenchError: an unknown measure, or one that looks deeper than ``depth``.
    """
    names = resolve_measures(dataset, measures, depth)
    protocol = make_protocol(dataset, depth, corpus_sha256="", official=official)
    return _score_ranking(
        dataset,
        apply_protocol(run, dataset, protocol.depth),
        protocol,
        names,
        Timings(),
        model=name,
        documents=None,
        index="",
        index_recall={},
        in_domain=False,
        recipe=None,
        fingerprint=sha256,
        preflight={},
        conditions=current_conditions("cpu"),
    )


def _score_ranking(
    dataset: Dataset,
    run: Run,
    protocol: Protocol,
    names: Sequence[str],
    timings: Timings,
    **provenance: Any,
) -> Evaluation:
    """The result of a ranking; ``about`` are the fields that say where it comes from."""
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


def in_domain(card: Card, collection: str) -> bool:
    """True if the model was trained on the collection, or on the family that it belongs to."""
    return any(f"{collection}/".startswith(f"{name}/") for name in card.trained_on)


@cache
def program_digest(root: Path = ROOT) -> str:
    """16 hexadecimal digits of the source files and cards; "" if they are not at hand."""
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


def current_conditions(device: str) -> Conditions:
    """The conditions of this machine and program, now, with the threads of this process."""
    from bench import __version__

    commit = _run_git(ROOT, "rev-parse", "HEAD")
    versions = {name: library_version(name) for name in LIBRARIES}
    return Conditions(
        time=utc_now(),
        bench=__version__,
        commit=commit,
        dirty=bool(commit and _run_git(ROOT, "status", "--porcelain", "--untracked-files=no")),
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        device=device,
        search_device=search_device(device),
        threads=len(os.sched_getaffinity(0)),
        libraries={name: version for name, version in versions.items() if version},
        program=program_digest(),
    )


@cache
def _run_git(root: Path, *arguments: str) -> str:
    """Output of git in a checkout, "" if there is none; asked once in a process."""
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(root), *arguments]
        evaluation = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return evaluation.stdout.strip()
