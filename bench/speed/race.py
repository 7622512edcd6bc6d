"""Tools timed in alternation, with the same weights and the same texts or files."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import Distribution, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from bench import __version__
from bench.speed.peers import PeerJob, openvino_transformer, sentence_transformer
from bench.speed.speed_report import Spread, ToolComparison, ToolTiming
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.beir import write_collection
from datasets_cfg.readers.reader import Document
from foundation.errors import BenchError
from retrievers.models.folder import ModelFolder
from retrievers.models.resolve import Model
from retrievers.models.st_files import ST_POOLING

OURS = "bench"
SENTENCE_TRANSFORMERS = "sentence-transformers"
OPENVINO = "sentence-transformers-openvino"
# Tools whose vectors are compared with ours, loaded with the texts that calibrate int8.
ENCODERS: dict[str, Callable[[PeerJob, Sequence[str]], Any]] = {
    SENTENCE_TRANSFORMERS: lambda job, _: sentence_transformer(job),
    OPENVINO: openvino_transformer,
}
# Packages of tools with other names; optimum-intel requires OpenVINO and NNCF.
PACKAGES = {OPENVINO: "optimum-intel"}
# The batch size that each tool has by default.
DEFAULT_BATCH = {SENTENCE_TRANSFORMERS: 32, OPENVINO: 32, "beir": 128, "mteb": 32}
OTHER_BATCHES = (16,)  # for sentence-transformers, since smaller batches are faster on CPUs
MEASURE = "nDCG@10"
TOLERANCE = 0.0005  # difference of scores that counts as equal
ROOT = Path(__file__).resolve().parents[2]

Result = TypeVar("Result")


@dataclass(frozen=True)
class TimedPass:
    """One pass of some work. Its ``result`` is vectors, float32 ``(n, dim)``, or a score.

    ``processor_s`` is the CPU time of all threads.
    """

    seconds: float
    processor_s: float
    result: Any
    phases_s: Mapping[str, float] = field(default_factory=dict)


class ToolRunner(NamedTuple):
    """A tool, named with its batch size, that does the work once each time ``run`` is called."""

    tool: str
    version: str
    run: Callable[[], TimedPass]


def announce(text: str) -> None:
    """Print a line of progress on stderr."""
    print(f"speed: {text}", file=sys.stderr)


def time_tools(
    tools: Sequence[ToolRunner], repeats: int, tolerance: float, *, warm_up: bool
) -> tuple[ToolTiming, ...]:
    """Run every tool ``repeats`` times in alternation, starting with a different one in each round.

    The first tool is ours, and the others agree with it if no value of a result differs by more
    than ``tolerance``. To warm up, the work is first done once, uncounted.
    """
    for entrant in tools if warm_up else ():
        entrant.run()
    passes: list[list[TimedPass]] = [[] for _ in tools]
    for turn in range(repeats):
        for number in range(len(tools)):
            place = (turn + number) % len(tools)
            done = tools[place].run()
            passes[place].append(done)
            spent = f"{done.seconds:.2f} s wall-clock, {done.processor_s:.2f} s CPU"
            announce(f"{tools[place].tool}: {spent}")
    ours = passes[0]
    return tuple(
        _summarise_passes(entrant, tool_passes, ours, tolerance)
        for entrant, tool_passes in zip(tools, passes, strict=True)
    )


def _summarise_passes(
    entrant: ToolRunner, passes: Sequence[TimedPass], ours: Sequence[TimedPass], tolerance: float
) -> ToolTiming:
    """Summarise the times of a tool, and compare its times and results with ours."""
    phases = dict.fromkeys(name for done in passes for name in done.phases_s)
    reference = ours[0].result
    apart = [np.abs(np.subtract(done.result, reference)).max(initial=0) for done in passes]
    difference = float(np.max(apart))  # NaN stays
    wall_s, own_s = (Spread.of([done.seconds for done in each]) for each in (passes, ours))
    agrees = difference <= tolerance
    return ToolTiming(
        tool=entrant.tool,
        version=entrant.version,
        wall_s=wall_s,
        processor_s=Spread.of([done.processor_s for done in passes]),
        phases_s={
            name: Spread.of([done.phases_s.get(name, 0.0) for done in passes]) for name in phases
        },
        difference=difference,
        agrees=agrees,
        ratio=wall_s.median / own_s.median if agrees and passes is not ours else None,
        score=None if np.ndim(reference) else float(passes[0].result),
    )


def time_call(work: Callable[[], Result]) -> tuple[float, Result]:
    """Call ``work`` between idle GPUs, and return its wall-clock seconds and result."""
    synchronise()
    start = time.perf_counter()
    result = work()
    synchronise()
    return time.perf_counter() - start, result


def time_pass(work: Callable[[], object]) -> TimedPass:
    """Do ``work`` once in this process and time it."""
    processor_s = time.process_time()
    seconds, result = time_call(work)
    return TimedPass(seconds, time.process_time() - processor_s, result)


def synchronise() -> None:
    """Wait until every GPU is idle."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


def check_installed(tools: Sequence[str]) -> None:
    """Raise if one of ``tools`` is not installed, with the command that installs it."""
    packages = [PACKAGES.get(tool, tool) for tool in tools]
    missing = [name for name in packages if not any(Distribution.discover(name=name))]
    if missing:
        raise BenchError(
            f"not installed here: {', '.join(missing)}", f"Run `pip install {' '.join(missing)}`."
        )


def check_raceable(model: Model) -> None:
    """Raise if sentence-transformers cannot use ``model`` as its recipe does."""
    recipe, checkpoint = model.recipe, model.document
    is_single = recipe.traits.is_network and model.query is None and recipe.adapter is None
    if checkpoint is None or not is_single:
        problem = "it is not one transformer"
    elif recipe.title_join != "space" or recipe.pooling not in ST_POOLING:
        problem = f"its title_join is {recipe.title_join}, its pooling {recipe.pooling}"
    elif recipe.stages and not ModelFolder(checkpoint.root).is_st:
        problem = "it has layers after pooling"
    else:
        return
    raise BenchError(
        f"{model.card.name} cannot be raced against other tools: {problem}", "Leave out --against."
    )


def make_job(model: Model, device: str, threads: int) -> PeerJob:
    """Return the job of another tool with the same weights, length, prompts and precision."""
    recipe, checkpoint = model.recipe, model.document
    # Without further layers the recipe is enough, and its pooling may differ from the folder's.
    whole = checkpoint is None or bool(recipe.stages)
    weights = checkpoint and (checkpoint.root if whole else checkpoint.folder)
    return PeerJob(
        weights=str(weights or ""),
        pooling="" if whole else ST_POOLING.get(recipe.pooling, ""),
        normalize=recipe.normalize,
        lower_case=recipe.lower_case,
        device=device,
        dtype=recipe.precision,
        threads=threads,
        max_tokens=recipe.max_document_tokens or 0,
        batch_size=0,
        similarity=recipe.similarity,
        query_prompt=recipe.prompts.query,
        document_prompt=recipe.prompts.document,
    )


def _tool_name(tool: str, batch_size: int) -> str:
    default = ", its default" if batch_size == DEFAULT_BATCH[tool] else ""
    return f"{tool} (batch {batch_size}{default})"


def sentence_transformers_tools(
    tool: str, model: Any, prompt: str, texts: Sequence[str]
) -> Iterator[ToolRunner]:
    """Yield the ``encode`` of ``texts`` by the ``model`` of a tool in `ENCODERS`, by batch size."""
    for size in (DEFAULT_BATCH[tool], *OTHER_BATCHES):
        encode = partial(
            model.encode,
            list(texts),
            batch_size=size,
            show_progress_bar=False,
            prompt=prompt or None,
        )
        tool_version = version(PACKAGES.get(tool, tool))
        yield ToolRunner(_tool_name(tool, size), tool_version, partial(time_pass, encode))


def race_tools(
    dataset: Dataset,
    job: PeerJob,
    tools: Sequence[str],
    arguments: Sequence[str],
    rounds: int,
    scratch: Path,
) -> ToolComparison:
    """Let every tool evaluate a collection in fresh processes without caches, in alternation.

    Without ``tools`` from `SCORES`, ours is timed alone, with ``arguments`` of ``run``. Writing to
    the disk of ``scratch`` is part of the race.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as temporary:
        folder = write_beir_folder(dataset, Path(temporary))
        base = replace(job, folder=str(folder), exclude_self=bool(dataset.metadata.exclude_self))
        runners = [ToolRunner(OURS, __version__, partial(_run_ours, base, arguments, temporary))]
        for tool in tools:
            sized = replace(base, batch_size=DEFAULT_BATCH[tool])
            run = partial(_run_peer, tool, sized)
            runners.append(ToolRunner(_tool_name(tool, sized.batch_size), version(tool), run))
        raced = time_tools(runners, rounds, TOLERANCE, warm_up=False)
    return ToolComparison(
        name=dataset.name,
        documents=len(dataset.corpus),
        queries=len(dataset.queries),
        measure=MEASURE,
        tolerance=TOLERANCE,
        tools=raced,
    )


def write_beir_folder(dataset: Dataset, place: Path) -> Path:
    """Write ``dataset`` to ``place`` in BEIR's layout with its protocol, and return the folder."""
    if dataset.answers is not None or dataset.excluded:
        problem = "is judged by answer strings" if dataset.answers else "excludes documents"
        raise BenchError(f"{dataset.name} {problem}, which other tools do not support")
    metadata = {
        # A copy is not the published collection, whose name it must not claim.
        "name": f"copy-of-{dataset.name.replace('/', '-')}",
        "layout": "beir",
        "split": "test",
        "main_measure": MEASURE,
        "depth": dataset.metadata.depth,
        "exclude_self": bool(dataset.metadata.exclude_self),
    }
    corpus, queries = dataset.corpus, dataset.queries
    columns = (column.to_pylist() for column in (corpus.ids, corpus.titles, corpus.texts))
    asked = zip(queries.ids, queries.texts, strict=True)
    folder = place / "collection"
    folder.mkdir()
    write_collection(folder, map(Document, *columns), asked, dataset.qrels, metadata)
    return folder


def _run_ours(job: PeerJob, arguments: Sequence[str], place: str) -> TimedPass:
    """Time ``run`` with an empty cache, so that the corpus is built and every text encoded."""
    with tempfile.TemporaryDirectory(dir=place) as fresh:
        places = ["--cache-dir", f"{fresh}/cache", "--results", f"{fresh}/results"]
        command = [sys.executable, "-m", "bench", "run", job.folder, *arguments, *places]
        command += ["--device", job.device, "--json"]
        done = run_process(command, job.threads, OURS)
    (result,) = msgspec.json.decode(done.result)["results"]
    score, busy_s = float(result["measures"][MEASURE]), result["timings"].get("busy_s", {})
    return replace(done, result=score, phases_s=busy_s)


def _run_peer(tool: str, job: PeerJob) -> TimedPass:
    command = [sys.executable, "-m", "bench.speed.peers", tool, json.dumps(asdict(job))]
    done = run_process(command, job.threads, tool)
    return replace(done, result=float(done.result.strip().splitlines()[-1]))


def run_process(command: Sequence[str], threads: int, what: str) -> TimedPass:
    """Run a command to its end, with ``threads`` as OMP_NUM_THREADS. The result is its stdout."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    environment = {**os.environ, **settings, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = "\n  ".join(["its last lines:", *lines[-8:]])
        raise BenchError(f"{what} failed: {(lines or ['no output'])[-1]}", last)
    processor_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return TimedPass(seconds, processor_s, done.stdout)
