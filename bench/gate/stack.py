"""Check of an upgrade: one model, loaded by two interpreters with different libraries.

`bench/gate/stack_probe.py` runs in both and writes arrays. They are compared in the order in which
a score is made: token ids of fixed texts, hidden states of equal token ids, vectors, scores. The
first that differ, with the properties that belong to them, name the cause.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bench.comparing.statistics import Resampling, paired_difference, resample_differences
from bench.evaluation.judging import apply_protocol
from bench.evaluation.runs import Run
from bench.evaluation.scoring import score
from bench.gate.check_record import STACK, Check, CheckRow, Outcome, Reason
from bench.requests.deciding import StackCheckRequest
from bench.runner.workspace import load_models, open_workspace
from datasets_cfg.dataset import Dataset, take_first_queries
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from retrievers.encoders.preflight import BATCH_TOLERANCE, relative_distances
from retrievers.encoders.protocol import join
from retrievers.encoders.tokens import probe_texts
from retrievers.models.card import Role
from retrievers.models.folder import ModelFolder
from retrievers.models.resolve import Model

PROBE = Path(__file__).with_name("stack_probe.py")
QUERIES = 25  # of a collection: with their documents, 300 to 400 texts
UNKNOWN = 0.1  # share of unknown tokens that is a cause
ROLES: tuple[Role, ...] = ("query", "document")
HERE = "this one"
STATE_PROPERTIES = {
    "dtype": "dtype",
    "attention": "attention kernel",
    "direction": "attention",
    "rotary": "rotary frequencies",
    "network": "class of the network",
}
VECTOR_PROPERTIES = {
    "max_tokens": "position limit",
    "prompts": "prompts",
    "default_prompt": "default prompt",
    "modules": "modules",
}
WIRING = ("module_input_name", "module_output_name", "modality_config")  # of a version, not a model


@dataclass(frozen=True)
class Stack:
    """Properties that vectors depend on, hidden states and vectors, from one interpreter."""

    properties: Mapping[str, Any]
    arrays: Mapping[str, Any]


def check_stack(request: StackCheckRequest, python: Path) -> Check:
    """Compare the token ids, states, vectors and scores of a model in two interpreters.

    A sample of each collection is scored. Nothing of the libraries of ``python``, the other
    interpreter, is imported here.
    """
    if not isinstance(request.candidate, str | Path) or not str(request.candidate):
        raise BenchError(
            "--stack needs a candidate", "Run `python -m bench check CANDIDATE --stack PYTHON`."
        )
    workspace = open_workspace(request)
    datasets = [workspace.dataset(name) for name in workspace.expand_names(request.on)]
    folder, model = Path(request.candidate).expanduser(), None
    if code := ModelFolder(folder).find_code():
        raise BenchError(f"{code}, and --stack runs no code of a folder", "Leave out --stack.")
    if request.like or not ModelFolder(folder).is_st:
        (loaded,) = load_models(workspace, (str(request.candidate),), request)
        folder, model = loaded.model.checkpoint.root, loaded.model
        if not request.like and ModelFolder(folder).is_st:
            model = None
            print(f"note: {folder} is used as its modules.json states", file=sys.stderr)
    if not shutil.which(python):
        raise BenchError(
            f"{python} is not an interpreter",
            "Name the Python of another environment, such as new/bin/python.",
        )
    for dataset in datasets:
        if dataset.answers is not None:
            raise BenchError(
                f"{dataset.name} has answers instead of judgements",
                "Name another collection with --on.",
            )
    samples = [take_first_queries(dataset, QUERIES) for dataset in datasets]
    job = make_job(folder, model, samples, workspace.device)
    candidate = f"{request.candidate} with {python}"
    here = run_probe(Path(sys.executable), job)
    try:
        there = run_probe(python, job | {"tokens": here.properties["whole"]})
    except CannotLoadError as error:
        return Check(
            candidate=candidate,
            baseline=HERE,
            role=STACK,
            outcome="DRIFT",
            reasons=tuple(map(Reason, [str(error), *_libraries(here=here)])),
            rows=(CheckRow(on="model", failure=str(error)),),
        )
    cosine = model.recipe.similarity == "cos" if model else here.properties["similarity"] != "dot"
    return judge_stacks(candidate, here, there, samples, cosine)


def judge_stacks(
    candidate: str, here: Stack, there: Stack, samples: Sequence[Dataset] = (), cosine: bool = True
) -> Check:
    """Decide whether two stacks give the same token ids and vectors, and name what differs.

    Both encoded the texts of ``samples``. The hidden states of ``there``, the new stack, are of the
    token ids ``here``. Documents are ranked by cosine or inner product.
    """
    exact = BATCH_TOLERANCE["float32"]
    tolerance = min(BATCH_TOLERANCE.get(each.properties["dtype"], exact) for each in (here, there))
    distances = {name: _distances(here, there, name) for name in here.arrays}
    token_causes, causes = list(_token_causes(here, there)), list[str]()
    if distances["states"].max() > tolerance:
        causes = list(_property_causes(here, there, STATE_PROPERTIES)) or ["hidden states differ"]
    causes = [*token_causes, *causes]
    largest = max(float(distances[f"probe {role}"].max()) for role in ROLES)
    if largest > tolerance:
        causes += _property_causes(here, there, VECTOR_PROPERTIES)
        causes = causes or ["vectors differ"]
    equal = [
        a == b for a, b in zip(here.properties["whole"], there.properties["whole"], strict=True)
    ]
    row = partial(CheckRow, mean_b=1.0)
    measure, share, why = "share of equal token ids", float(np.mean(equal)), "; ".join(token_causes)
    rows = [row(on="fixed texts", measure=measure, mean_a=share, failure=why)]
    for role in ROLES:
        every = np.concatenate([one for key, one in distances.items() if key.endswith(f" {role}")])
        name, share = f"{len(every):,} texts as a {role}", float((every <= tolerance).mean())
        rows.append(row(on=name, measure="share of equal vectors", mean_a=share))
    reasons = [
        *(causes or ["token ids and vectors are equal"]),
        f"the largest difference of a vector is {largest:.1e} of its length",
        *_libraries(here=here, there=there),
    ]
    outcome: Outcome = "DRIFT" if causes or any(each.mean_a != 1 for each in rows) else "OK"
    return Check(
        candidate=candidate,
        baseline=HERE,
        role=STACK,
        outcome=outcome,
        reasons=tuple(map(Reason, reasons)),
        rows=(*rows, *(_score_row(sample, here, there, cosine) for sample in samples)),
    )


def _libraries(**stacks: Stack) -> Iterator[str]:
    """Yield the versions of each named stack, one line each."""
    for place, stack in stacks.items():
        versions = stack.properties["libraries"].items()
        yield f"{place}: {', '.join(f'{name} {each}' for name, each in versions)}"


def make_job(
    folder: Path, model: Model | None, samples: Sequence[Dataset], device: str
) -> dict[str, Any]:
    """Return what the probe reads: the texts, and how a plain checkpoint is used."""
    probe = probe_texts()
    texts: dict[str, Sequence[str]] = {f"probe {role}": probe for role in ROLES}
    for each in samples:
        pairs = zip(*each.corpus.documents_at(np.arange(len(each.corpus))), strict=True)
        documents = [join("space", "", title, text)[0] for title, text in pairs]
        texts |= {f"{each.name} query": each.queries.texts, f"{each.name} document": documents}
    job: dict[str, Any] = {"folder": str(folder), "modules": model is None, "device": device}
    job |= {"probe": probe, "tokens": None, "texts": texts}
    if model is not None:
        recipe = model.recipe
        is_plain = recipe.title_join == "space" and recipe.truncation_side == "right"
        is_plain = is_plain and not recipe.lower_case and not recipe.dataset_prompts
        is_pooled = recipe.pooling in ("cls", "mean", "last") and not recipe.stages
        if not (is_plain and is_pooled) or model.query:
            raise BenchError(
                f"{recipe.model} is not a folder of sentence-transformers, and its card has more "
                "than one encoder, prompts and pooling by cls, mean or last token",
                "Save it as a folder of sentence-transformers.",
            )
        lengths = recipe.max_query_tokens, recipe.max_document_tokens
        job |= {"pooling": recipe.pooling, "normalize": recipe.normalize}
        job["prompts"] = {"query": recipe.prompts.query, "document": recipe.prompts.document}
        job["max_tokens"] = dict(zip(ROLES, lengths, strict=True))
    return job


class CannotLoadError(BenchError):
    """The model cannot be loaded by an interpreter that has the libraries."""


def run_probe(python: Path, job: Mapping[str, Any]) -> Stack:
    """Run the probe in an interpreter and read what it wrote.

    Raises:
        CannotLoadError: the model cannot be loaded there.
        BenchError: it is not an interpreter, or lacks a library.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, written = Path(folder, "job.json"), Path(folder, "arrays.npz")
        asked.write_text(json.dumps(job), encoding="utf-8")
        command = [str(python), str(PROBE), str(asked), str(written)]
        print(f"loading {job['folder']} with {python}", file=sys.stderr)
        # Threads that wait for work in a loop take the time of others on a busy machine.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        errors = Path(folder, "errors.txt")
        with errors.open("wb") as file:
            running = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
            )
            _show_progress(running, sum(map(len, job["texts"].values())))
        if running.returncode:
            lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = (lines or ["it wrote no error"])[-1]
            if last.startswith(("ModuleNotFoundError", "ImportError")):
                raise BenchError(f"{python}: {last}", "Install the library there.")
            raise CannotLoadError(f"{python} cannot load {job['folder']}: {last}")
        return read_probe(written)


def _show_progress(running: subprocess.Popen[str], texts: int) -> None:
    """Show how many texts a probe has encoded, until it ends."""
    with running, tqdm(desc="encoding", total=texts, unit=" texts") as bar:
        for line in running.stdout or ():
            if line.strip().isdecimal():  # a library may print as well
                bar.update(int(line))


def read_probe(path: Path) -> Stack:
    """Read what the probe wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        read = {name: arrays[name] for name in arrays.files}
    return Stack(json.loads(str(read.pop("properties"))), read)


def _token_causes(here: Stack, there: Stack) -> Iterator[str]:
    """Yield the differences between the token ids of fixed texts."""
    old, new = here.properties, there.properties
    different = sum(a != b for a, b in zip(old["bare"], new["bare"], strict=True))
    if different:
        what = f"{different} of {len(old['bare'])} fixed texts have other token ids"
        if new["unknown"] > max(UNKNOWN, old["unknown"]):
            share = f"{new['unknown']:.0%} of the tokens there, {old['unknown']:.0%} here"
            what = f"unknown words: {share}"
        replaced = f"; the tokenizer is a {new['tokenizer']}, here a {old['tokenizer']}"
        yield what + (replaced if old["tokenizer"] != new["tokenizer"] else "")
    around = [each["special"] or "none" for each in (new, old)]
    if around[0] != around[1]:
        yield f"special tokens: {around[0]} around a text there, {around[1]} here"


def _property_causes(here: Stack, there: Stack, properties: Mapping[str, str]) -> Iterator[str]:
    """Yield the properties that differ."""
    for key, name in properties.items():
        old, new = (dict(_flatten(name, each.properties.get(key))) for each in (here, there))
        for item in {**old, **new}:
            now, before = new.get(item, "none"), old.get(item, "none")
            if now != before:
                yield f"{item}: {now} there, {before} here"


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values of a property, at any depth, without the wiring of a library's version."""
    if not isinstance(value, dict):
        yield name, f"{value:.6g}" if isinstance(value, float) else str(value) or "none"
        return
    for key, item in value.items():
        if key not in WIRING:
            yield from _flatten(f"{name}, {key}", item)


def _distances(here: Stack, there: Stack, name: str) -> Float64Array:
    """Return the relative distance of each pair of rows, float64 ``(n,)``; 1 for other widths."""
    old, new = here.arrays[name], there.arrays[name]
    if old.shape != new.shape:
        return np.ones(max(1, len(old)))
    return relative_distances(old, new)


def _score_row(sample: Dataset, here: Stack, there: Stack, cosine: bool) -> CheckRow:
    """Return the scores of a sample here (baseline) and there (candidate)."""
    measure = sample.metadata.main_measure
    old, new = (_score(sample, each, measure, cosine) for each in (here, there))
    part = resample_differences(new - old, Resampling(), sample.name, measure)
    return CheckRow(
        on=f"{sample.name}, {len(sample.queries):,} queries, {len(sample.corpus):,} documents",
        measure=measure,
        queries=len(sample.queries),
        mean_a=float(new.mean()),
        mean_b=float(old.mean()),
        paired=paired_difference([part]),
    )


def _score(sample: Dataset, stack: Stack, measure: str, cosine: bool) -> Float64Array:
    """Return the measure of each query of a sample, whose documents are ranked."""
    sides = [stack.arrays[f"{sample.name} {role}"].astype(np.float64) for role in ROLES]
    if cosine:
        sides = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in sides]
    ids, products = sample.corpus.ids.to_pylist(), sides[0] @ sides[1].T
    queries = np.repeat(sample.queries.ids, len(ids)).tolist()
    run = Run.from_rows(queries, ids * len(sample.queries), products.ravel())
    scored = score(apply_protocol(run, sample, len(ids)), sample.qrels, [measure])
    by_query = scored.by_query(measure)
    return np.array([by_query[query] for query in sample.queries.ids])
