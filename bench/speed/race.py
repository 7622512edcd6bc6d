"""Other tools beside ours: the same weights on the same texts or files, by turns."""

import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import msgspec

from bench import __version__
from bench.speed.peers import PeerJob, sentence_transformer
from bench.speed.records import Contest
from bench.speed.timing import Pass, Say, TimedTool, contest, timed_pass
from datasets_cfg.dataset import Dataset, write_dicts
from foundation.errors import BenchError
from retrievers.models.model import Model
from retrievers.models.recipe import Prompts, Recipe
from retrievers.models.st_folder import ST_POOLING, is_st_folder, write_st_files

OURS = "bench"
SENTENCE_TRANSFORMERS = "sentence-transformers"
# The batch size that each tool has by default.
DEFAULT_BATCH: Mapping[str, int] = MappingProxyType(
    {SENTENCE_TRANSFORMERS: 32, "beir": 128, "mteb": 32}
)
OTHER_BATCHES = (16,)  # of sentence-transformers: on CPUs smaller ones are faster
MEASURE = "nDCG@10"
TOLERANCE = 0.0005  # of a score
ROOT = Path(__file__).resolve().parents[2]


def check_installed(tools: Sequence[str]) -> None:
    """Check that all tools can be imported.

    Raises:
        BenchError: one is not installed.
    """
    missing = [tool for tool in tools if importlib.util.find_spec(tool.replace("-", "_")) is None]
    if missing:
        raise BenchError(
            f"not installed here: {', '.join(missing)}",
            f"pip install {' '.join(missing)} (or `tox -e race`, which makes an environment)",
        )


def job_for(recipe: Recipe, weights: Path, device: str, threads: int) -> PeerJob:
    """The same weights, length, prompts and precision for another tool."""
    return PeerJob(
        weights=str(weights),
        device=device,
        dtype=recipe.dtype,
        threads=threads,
        max_tokens=recipe.max_document_tokens,
        batch_size=0,
        similarity=recipe.similarity,
        query_prompt=recipe.prompts.query,
        document_prompt=recipe.prompts.document,
    )


def _named(tool: str, batch_size: int) -> str:
    default = ", its default" if batch_size == DEFAULT_BATCH[tool] else ""
    return f"{tool} (batch {batch_size}{default})"


def encoders(job: PeerJob, texts: Sequence[str]) -> Iterator[TimedTool]:
    """sentence-transformers' own ``encode`` of some texts, in this process, by batch size."""
    model = sentence_transformer(job)
    for size in (DEFAULT_BATCH[SENTENCE_TRANSFORMERS], *OTHER_BATCHES):
        encode = partial(
            model.encode,
            list(texts),
            batch_size=size,
            show_progress_bar=False,
            prompt=job.document_prompt or None,
        )
        tool, own = SENTENCE_TRANSFORMERS, version(SENTENCE_TRANSFORMERS)
        yield TimedTool(_named(tool, size), own, partial(timed_pass, encode))


def race(
    dataset: Dataset,
    job: PeerJob,
    tools: Sequence[str],
    arguments: Sequence[str],
    rounds: int,
    place: Path,
    say: Say,
) -> Contest:
    """Every tool evaluates one collection, in fresh processes and by turns, ours without a cache.

    Args:
        job: weights and settings for the other tools.
        tools: of `SCORES`; none is a race against nobody.
        arguments: of ``run`` for our model.
        place: folder for what is written: the disk is part of the race.
        say: told the result of each tool as soon as it is there.

    Raises:
        BenchError: the collection is judged by answer strings, or a tool fails.
    """
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        folder = written(dataset, Path(temporary))
        own = replace(job, folder=str(folder), exclude_self=bool(dataset.facts.exclude_self))
        entrants = [TimedTool(OURS, __version__, partial(_run_ours, own, arguments, temporary))]
        for tool in tools:
            sized = replace(own, batch_size=DEFAULT_BATCH[tool])
            run = partial(_run_peer, tool, sized)
            entrants.append(TimedTool(_named(tool, sized.batch_size), version(tool), run))
        raced = contest(entrants, rounds, TOLERANCE, say, warm_up=False)
    return Contest(
        name=dataset.name,
        documents=len(dataset.corpus),
        queries=len(dataset.queries),
        measure=MEASURE,
        tolerance=TOLERANCE,
        tools=raced,
    )


def written(dataset: Dataset, place: Path) -> Path:
    """A collection in BEIR's layout with its protocol, so that every tool reads the same files.

    Raises:
        BenchError: it is judged by answer strings.
    """
    if dataset.answers is not None:
        raise BenchError(f"{dataset.name} is judged by answer strings: other tools cannot")
    corpus = dataset.corpus
    columns = (column.to_pylist() for column in (corpus.ids, corpus.titles, corpus.texts))
    documents = {
        id_: {"title": title, "text": text} for id_, title, text in zip(*columns, strict=True)
    }
    qrels: dict[str, dict[str, int]] = {}
    for query, document, grade in dataset.qrels:
        qrels.setdefault(query, {})[document] = int(grade)
    facts = {
        "main_measure": MEASURE,
        "depth": dataset.facts.depth,
        "exclude_self": bool(dataset.facts.exclude_self),
    }
    queries = dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True))
    # A copy is not the published collection, whose name it must not claim.
    name = f"copy-of-{dataset.name.replace('/', '-')}"
    folder, _ = write_dicts(documents, queries, qrels, name, place, facts)
    return folder


def _run_ours(job: PeerJob, arguments: Sequence[str], place: str) -> Pass:
    """``run`` into an empty cache: the corpus is built and every text is encoded."""
    with tempfile.TemporaryDirectory(dir=place) as fresh:
        places = ["--cache-dir", f"{fresh}/cache", "--out", f"{fresh}/results"]
        command = [sys.executable, "-m", "bench", "run", job.folder, *arguments, *places]
        command += ["--device", job.device, "--json"]
        done = run_process(command, job.threads, OURS)
    (result,) = msgspec.json.decode(done.result)["results"]
    return replace(done, result=float(result["measures"][MEASURE]))


def _run_peer(tool: str, job: PeerJob) -> Pass:
    command = [sys.executable, "-m", "bench.speed.peers", tool, job.to_json()]
    done = run_process(command, job.threads, tool)
    try:
        return replace(done, result=float(done.result.strip().splitlines()[-1]))
    except (IndexError, ValueError) as error:
        raise BenchError(f"{tool} gave no result") from error


def run_process(command: Sequence[str], threads: int, what: str) -> Pass:
    """Run a command from start to end; its result is what it printed.

    Raises:
        BenchError: it failed; its last words are in the message.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    environment = {**os.environ, **settings, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = "\n  ".join(["its last lines:", *lines[-8:]])
        raise BenchError(f"{what} failed: {(lines or ['it said nothing'])[-1]}", last)
    processor_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Pass(seconds, processor_s, done.stdout)


@contextmanager
def as_sentence_transformers(model: Model, place: Path) -> Iterator[Path]:
    """The model's own folder where it is one, else a temporary one that links to its files.

    The temporary folder says how the checkpoint is used: pooling, length and normalisation of
    the recipe, no prompts, which a `PeerJob` has. The checkpoint's own folder is only read.

    Raises:
        BenchError: what this model does cannot be told to sentence-transformers.
    """
    checkpoint = model.document
    problems = _problems(model)
    if checkpoint is None or problems:
        raise BenchError(
            f"{model.card.name} cannot be raced against other tools: {', '.join(problems)}",
            "leave --against out",
        )
    if is_st_folder(checkpoint.root):
        yield checkpoint.root
        return
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        folder = Path(temporary)
        length = model.recipe.max_document_tokens
        alone = msgspec.structs.replace(model.recipe, prompts=Prompts(), max_query_tokens=length)
        write_st_files(folder, alone, alone.dim)
        for path in checkpoint.folder.iterdir():  # after what is written, never through a link
            if not (folder / path.name).exists():
                (folder / path.name).symlink_to(path.resolve())
        yield folder


def _problems(model: Model) -> list[str]:
    recipe, checkpoint = model.recipe, model.document
    if recipe.kind != "transformer" or checkpoint is None:
        return ["it has no transformer"]
    plain = not is_st_folder(checkpoint.root)
    problems = {
        "its queries have an encoder of their own": model.query is not None,
        "it has an adapter": recipe.adapter is not None,
        f"its title_join is {recipe.title_join}": recipe.title_join != "space",
        f"its pooling is {recipe.pooling}": recipe.pooling not in ST_POOLING,
        "it has layers after pooling": plain and bool(recipe.stages),
    }
    return [problem for problem, is_one in problems.items() if is_one]
