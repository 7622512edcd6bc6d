"""Check of an upgrade: one model, loaded by two interpreters with different libraries.

`bench/gate/stack_probe.py` runs in both and writes arrays. They are compared in the order in which
a score is made: token ids of fixed texts, hidden states of equal token ids, vectors, scores. The
first that differ, with the facts that belong to them, name the cause.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.comparing.statistics import (
    PairedScores,
    Resampling,
    paired_difference,
    random_stream,
    resample,
)
from bench.evaluation.runs import Run
from bench.evaluation.scoring import score
from bench.gate.check_record import STACK, CheckRow, Outcome, PairVerdict
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from retrievers.encoders.preflight import BATCH_TOLERANCE
from retrievers.encoders.protocol import join
from retrievers.encoders.tokens import probe_texts
from retrievers.models.card import Role
from retrievers.models.resolve import Model

PROBE = Path(__file__).with_name("stack_probe.py")
QUERIES, DOCUMENTS = 100, 1_000  # of a collection
UNKNOWN = 0.1  # share of unknown tokens that is a cause
ROLES: tuple[Role, ...] = ("query", "document")
HERE = "this one"
STATE_FACTS = {
    "dtype": "dtype",
    "attention": "attention kernel",
    "rotary": "rotary frequencies",
    "network": "class of the network",
}
VECTOR_FACTS = {
    "max_tokens": "position limit",
    "prompts": "prompts",
    "default_prompt": "default prompt",
    "modules": "modules",
}
WIRING = ("module_input_name", "module_output_name", "modality_config")  # of a version, not a model


@dataclass(frozen=True)
class Stack:
    """Token ids, states and vectors of a model in one interpreter.

    Attributes:
        facts: versions of libraries, and what vectors depend on.
        arrays: arrays that the probe wrote.
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, Any]

    def tokens(self, name: str) -> list[list[int]]:
        """Return token ids of the fixed texts: ``whole``, or ``bare`` of special tokens."""
        ends = np.cumsum(self.arrays[f"{name}_lengths"])[:-1]
        return [part.tolist() for part in np.split(self.arrays[name], ends)]

    def names(self, ids: Sequence[int]) -> str:
        """Return special tokens by name, others by id."""
        known = {str(id_): name for id_, name in self.facts["special_tokens"].items()}
        return " ".join(known.get(str(id_), str(id_)) for id_ in ids)


@dataclass(frozen=True)
class Sample:
    """Judged queries of a collection, with their relevant documents and others."""

    dataset: Dataset
    queries: Mapping[str, str]
    documents: Mapping[str, str]

    def scores(self, vectors: Mapping[Role, Any], cosine: bool) -> Float64Array:
        """Return the main measure of each query, with the documents of the sample ranked."""
        sides = [vectors[role].astype(np.float64) for role in ROLES]
        if cosine:
            sides = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in sides]
        products = sides[0] @ sides[1].T
        queries, documents = np.array(list(self.queries)), np.array(list(self.documents))
        ranked = np.ones(products.shape, np.bool_)
        if self.dataset.facts.exclude_self:
            ranked = queries[:, None] != documents
        rows, columns = np.nonzero(ranked)
        run = Run.from_rows(queries[rows].tolist(), documents[columns].tolist(), products[ranked])
        judged = [row for row in self.dataset.qrels if row[0] in self.queries]
        names, ids, grades = zip(*judged, strict=True)
        measure = self.dataset.facts.main_measure
        qrels = Qrels(names, ids, np.array(grades, np.int32))
        scored = score(run, qrels, [measure]).by_query(measure)
        return np.array([scored[query] for query in self.queries])


def draw_sample(dataset: Dataset) -> Sample:
    """Draw judged queries of a collection, with their relevant documents and others.

    Raises:
        BenchError: answers decide which documents are relevant.
    """
    if dataset.answers is not None:
        raise BenchError(
            f"{dataset.name} has answers instead of judgements",
            "Name another collection with --on.",
        )
    rng = np.random.default_rng(0)
    texts = dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True))
    judged = list(dataset.qrels.queries())
    chosen = {judged[row]: texts[judged[row]] for row in rng.permutation(len(judged))[:QUERIES]}
    relevant = [id_ for query, id_, grade in dataset.qrels if query in chosen and grade > 0]
    rows = np.unique(dataset.corpus.rows_of(relevant))
    others = rng.permutation(len(dataset.corpus))[:DOCUMENTS]
    rows = np.union1d(rows[rows >= 0], others[: max(0, DOCUMENTS - len(rows))])
    ids, (titles, bodies) = dataset.corpus.ids.take(rows), dataset.corpus.documents_at(rows)
    pairs = zip(titles, bodies, strict=True)
    documents = [join("space", "", title, text)[0] for title, text in pairs]
    return Sample(dataset, chosen, dict(zip(ids.to_pylist(), documents, strict=True)))


def compare_stacks(
    folder: Path, model: Model | None, python: Path, datasets: Sequence[Dataset], device: str
) -> PairVerdict:
    """Compare the token ids, states, vectors and scores of a model in two interpreters.

    Args:
        folder: folder of the model.
        model: how it is used; None for a folder of sentence-transformers, which states it.
        python: the other interpreter. Nothing of its libraries is imported here.
        datasets: collections of which a sample is scored.
        device: device of both: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: this interpreter cannot use the model, or the other one lacks a library.
    """
    if not shutil.which(python):
        raise BenchError(
            f"{python} is not an interpreter",
            "Name the Python of another environment, such as new/bin/python.",
        )
    samples = [draw_sample(dataset) for dataset in datasets]
    job = make_job(folder, model, samples, device)
    here = run_probe(Path(sys.executable), job)
    try:
        there = run_probe(python, job | {"tokens": here.tokens("whole")})
    except CannotLoadError as error:
        reasons = (str(error), *_libraries(here=here))
        row = CheckRow(name="model", failure=str(error))
        return PairVerdict(role=STACK, name=HERE, outcome="DRIFT", reasons=reasons, rows=(row,))
    cosine = model.recipe.similarity == "cos" if model else here.facts["similarity"] != "dot"
    return judge_stacks(here, there, samples, cosine)


def judge_stacks(
    here: Stack, there: Stack, samples: Sequence[Sample] = (), cosine: bool = True
) -> PairVerdict:
    """Decide whether two stacks give the same token ids and vectors, and name what differs.

    Args:
        here: the known stack.
        there: the new one, whose hidden states are of the token ids ``here``.
        samples: samples of collections, in the order in which both encoded them.
        cosine: whether documents are ranked by cosine instead of inner product.
    """
    exact = BATCH_TOLERANCE["float32"]
    tolerance = min(BATCH_TOLERANCE.get(each.facts["dtype"], exact) for each in (here, there))
    token_causes = list(_token_causes(here, there))
    states = bool(_distances(here, there, "states").max() > tolerance)
    largest = max(float(_distances(here, there, f"{role}_probe").max()) for role in ROLES)
    causes = [
        *token_causes,
        *_fact_causes(here, there, STATE_FACTS, states, "hidden states differ"),
    ]
    unexplained = "" if causes else "vectors differ"
    causes += _fact_causes(here, there, VECTOR_FACTS, largest > tolerance, unexplained)
    rows = [
        CheckRow(
            name="fixed texts",
            measure="share of equal token ids",
            candidate=_equal_tokens(here, there),
            baseline=1.0,
            failure="; ".join(token_causes),
        ),
        *(_vector_row(here, there, role, tolerance) for role in ROLES),
    ]
    first = dict.fromkeys(ROLES, 0)
    for sample in samples:
        sizes = dict(zip(ROLES, (len(sample.queries), len(sample.documents)), strict=True))
        parts = {role: slice(first[role], first[role] + sizes[role]) for role in ROLES}
        rows.append(_score_row(sample, here, there, parts, cosine))
        first = {role: part.stop for role, part in parts.items()}
    outcome: Outcome = "DRIFT" if causes or any(row.candidate != 1 for row in rows[:3]) else "OK"
    return PairVerdict(
        role=STACK,
        name=HERE,
        outcome=outcome,
        reasons=(
            *(causes or ["token ids and vectors are equal"]),
            f"the largest difference of a vector is {largest:.1e} of its length",
            *_libraries(here=here, there=there),
        ),
        rows=tuple(rows),
    )


def _libraries(**stacks: Stack) -> list[str]:
    """Return the versions of each named stack, one line each."""
    lines = []
    for place, stack in stacks.items():
        versions = stack.facts["libraries"].items()
        lines.append(f"{place}: {', '.join(f'{name} {each}' for name, each in versions)}")
    return lines


def make_job(
    folder: Path, model: Model | None, samples: Sequence[Sample], device: str
) -> dict[str, Any]:
    """Return what the probe reads: the texts, and how a plain checkpoint is used."""
    job: dict[str, Any] = {
        "folder": str(folder),
        "modules": model is None,
        "device": device,
        "probe": probe_texts(),
        "tokens": None,
        "query": [text for each in samples for text in each.queries.values()],
        "document": [text for each in samples for text in each.documents.values()],
    }
    if model is not None:
        recipe = model.recipe
        if recipe.pooling not in ("cls", "mean", "last") or recipe.stages or model.query:
            raise BenchError(
                f"{recipe.model} is neither a folder of sentence-transformers nor pooled by cls, "
                "mean or last token",
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
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it wrote no error"])[-1]
            if last.startswith(("ModuleNotFoundError", "ImportError")):
                raise BenchError(f"{python}: {last}", "Install the library there.")
            raise CannotLoadError(f"{python} cannot load {job['folder']}: {last}")
        return read_probe(written)


def read_probe(path: Path) -> Stack:
    """Read what the probe wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        read = {name: arrays[name] for name in arrays.files}
    return Stack(json.loads(str(read.pop("facts"))), read)


def _equal_tokens(here: Stack, there: Stack) -> float:
    pairs = zip(here.tokens("whole"), there.tokens("whole"), strict=True)
    return float(np.mean([a == b for a, b in pairs]))


def _token_causes(here: Stack, there: Stack) -> Iterator[str]:
    """Yield the differences between the token ids of fixed texts."""
    stacks = (here, there)
    bare = [each.tokens("bare") for each in stacks]
    classes = [f"{each.facts['tokenizer']} ({each.facts['tokenizer_model']})" for each in stacks]
    different = sum(a != b for a, b in zip(*bare, strict=True))
    if different:
        unknown, before = (_unknown_share(each) for each in (there, here))
        what = f"{different} of {len(bare[0])} fixed texts have other token ids"
        if unknown > max(UNKNOWN, before):
            what = f"unknown words: {unknown:.0%} of the tokens there, {before:.0%} here"
        replaced = f"; the tokenizer is a {classes[1]}, here a {classes[0]}"
        yield what + (replaced if classes[0] != classes[1] else "")
    added = [_special_tokens(each) for each in (here, there)]
    if added[0] != added[1]:
        yield (
            f"special tokens: {added[1] or 'none'} around a text there, {added[0] or 'none'} here"
        )


def _unknown_share(stack: Stack) -> float:
    return float((stack.arrays["bare"] == stack.facts["unknown"]).mean())


def _special_tokens(stack: Stack) -> str:
    """Return the special tokens around the first text, such as ``[CLS] … [SEP]``; "" for none."""
    whole, bare = stack.tokens("whole")[0], stack.tokens("bare")[0]
    starts = [n for n in range(len(whole) - len(bare) + 1) if whole[n : n + len(bare)] == bare]
    if not starts or len(whole) == len(bare):
        return ""
    first, last = whole[: starts[0]], whole[starts[0] + len(bare) :]
    return f"{stack.names(first)} … {stack.names(last)}".strip()


def _fact_causes(
    here: Stack, there: Stack, facts: Mapping[str, str], differ: bool, otherwise: str
) -> Iterator[str]:
    """Yield the facts that differ if what depends on them does, or else ``otherwise``."""
    if not differ:
        return
    causes = []
    for key, name in facts.items():
        old, new = _differing_items(*(_comparable(each.facts.get(key)) for each in (here, there)))
        if old != new:
            causes.append(f"{name}: {_short(new)} there, {_short(old)} here")
    yield from causes or filter(None, [otherwise])


def _comparable(fact: Any) -> Any:
    """Return ``fact`` without the wiring of modules, which belongs to a version of the library."""
    if isinstance(fact, dict):
        return {key: _comparable(each) for key, each in fact.items() if key not in WIRING}
    return round(fact, 6) if isinstance(fact, float) else fact


def _differing_items(old: Any, new: Any) -> tuple[Any, Any]:
    """Return both facts without the items, at any depth, that are equal."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return old, new
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    pairs = {key: _differing_items(old.get(key), new.get(key)) for key in keys}
    return {key: pair[0] for key, pair in pairs.items()}, {k: pair[1] for k, pair in pairs.items()}


def _short(fact: Any) -> str:
    text = json.dumps(fact, ensure_ascii=False) if isinstance(fact, dict | list) else str(fact)
    return text if len(text) <= 120 else f"{text[:120]}…"


def _distances(here: Stack, there: Stack, name: str) -> Float64Array:
    """Return the relative distance of each pair of rows, float64 ``(n,)``; 1 for other widths."""
    old, new = (each.arrays[name].astype(np.float64) for each in (here, there))
    if old.shape != new.shape:
        return np.ones(max(1, len(old)))
    lengths = np.maximum(np.linalg.norm(old, axis=1), 1e-30)
    relative: Float64Array = np.linalg.norm(old - new, axis=1) / lengths
    return relative


def _vector_row(here: Stack, there: Stack, role: Role, tolerance: float) -> CheckRow:
    names = [f"{role}_probe", *([role] if here.arrays[role].size else [])]
    every = np.concatenate([_distances(here, there, name) for name in names])
    return CheckRow(
        name=f"{len(every):,} texts as a {role}",
        measure="share of equal vectors",
        candidate=float((every <= tolerance).mean()),
        baseline=1.0,
    )


def _score_row(
    sample: Sample, here: Stack, there: Stack, parts: Mapping[Role, slice], cosine: bool
) -> CheckRow:
    """Return the scores of a sample here (baseline) and there (candidate)."""
    old, new = (
        sample.scores({role: each.arrays[role][parts[role]] for role in ROLES}, cosine)
        for each in (here, there)
    )
    name, measure = sample.dataset.name, sample.dataset.facts.main_measure
    drawn = resample((new - old)[:, None], Resampling(), random_stream(name))
    part = PairedScores(new - old, drawn.bootstrap[:, 0], drawn.flipped[:, 0], name, measure)
    return CheckRow(
        name=f"{name}, {len(sample.queries):,} queries, {len(sample.documents):,} documents",
        measure=measure,
        candidate=float(new.mean()),
        baseline=float(old.mean()),
        paired=paired_difference([part]),
    )
