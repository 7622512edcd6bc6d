"""The use case ``explain``: which difference of configuration explains the evidence.

For a search system, it is where its score is lost.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import msgspec
from attrs import evolve

from bench.evaluation.retriever import EvaluationOptions, Retriever
from bench.evaluation.vector_retriever import VectorRetriever
from bench.explain.deviation_search import answer_question
from bench.explain.evidence import SetupEvidence
from bench.explain.ledger import Ledger
from bench.explain.question import Question
from bench.explain.setup import Answer, Observation, differing_files
from bench.explain.stages import examine
from bench.explain.system import StoredSystem, is_system
from bench.requests.deciding import ExplainRequest
from bench.requests.fields import ModelFields
from bench.runner.workspace import Workspace, load_models, open_workspace
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.encoders.tokens import load_tokenizer
from retrievers.models.checkpoint import TOKENIZER as TOKENIZER_FILES
from retrievers.models.names import is_card
from retrievers.models.resolve import Model

NOT_OF_SYSTEMS = ("published", "per_query", "run_file", "vectors", "rescore")


def explain(request: ExplainRequest) -> Answer | Ledger:
    """Find the differences of configuration that explain the evidence, or where a search system
    loses.

    Raises:
        BenchError: wrong input, or no evidence.
    """
    if is_system(request.model):
        return explain_system(request)
    if request.measure:
        raise BenchError("--measure is of the ledger of a search system", "Leave out --measure.")
    if request.rescore is not None:
        raise BenchError("candidates scored again are not explained", "Leave out --rescore.")
    print(f"loading {request.model}", file=sys.stderr)
    workspace = open_workspace(request)
    (model,) = load_models(workspace, (request.model,), request)
    datasets = workspace.datasets(request.on)
    names = [dataset.name for dataset in datasets]  # of a folder, not its path
    typed = dict(zip(names, workspace.expand_names(request.on), strict=True))

    def open_split(name: str, split: str) -> Dataset:
        return workspace.dataset(typed[name], split)

    other = _load_other(workspace, request)
    question = Question(model, datasets, open_split, workspace.device, other)
    answer = answer_question(question, _evidence(request, question))
    if other is None:
        return answer
    seen = *_compare_files(model.model, other.model), *answer.seen
    return msgspec.structs.replace(answer, seen=seen)


def explain_system(request: ExplainRequest) -> Ledger:
    """Return the ledger of a search system that is meant to search the vectors of a checkpoint."""
    given = [name for name in NOT_OF_SYSTEMS if getattr(request, name)]
    if given:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise BenchError(f"the ledger of a search system has no {options}", f"Leave out {options}.")
    if request.checkpoint is None or len(request.on) != 1:
        problem = "a search system is compared with one checkpoint on one collection"
        raise BenchError(problem, "Give --checkpoint MODEL and one name with --on.")
    workspace = open_workspace(request)
    (dataset,) = workspace.datasets(request.on)
    system = StoredSystem.open(request.model, request.trust_code)
    if not dataset.has_documents and (texts := system.documents()):
        dataset = dataset.with_documents(texts)
    (loaded,) = load_models(workspace, (request.checkpoint,), request)
    loaded.require_encoder()
    named = loaded.for_dataset(dataset.name)
    model = cast("VectorRetriever", named.configured(EvaluationOptions(), workspace.resources))
    question = None
    with suppress(BenchError):  # not a transformer: no deviation can be applied
        question = Question(loaded, [dataset], workspace.dataset, workspace.device)
        _ = question.passes
    return examine(system, model, dataset, question, request.measure or None)


def _compare_files(model: Model, other: Model) -> Iterator[Observation]:
    """Yield the files of another checkpoint that differ, and tokens with other ids."""
    name, files = other.card.name, differing_files(model, other)
    same = "" if "weights" in files else "; the weights are byte-identical"
    what = f"files of {name} that differ: {', '.join(files) or 'none'}{same}"
    yield Observation(what, f"diff -r {model.checkpoint.root} {other.checkpoint.root}")
    if set(files) & set(TOKENIZER_FILES):
        ours, theirs = (load_tokenizer(each.checkpoint).get_vocab() for each in (model, other))
        if moved := [each for each in {**ours, **theirs} if ours.get(each) != theirs.get(each)]:
            ids = f"{moved[0]!r}, {theirs.get(moved[0])} there and {ours.get(moved[0])} here"
            what = f"{len(moved):,} tokens have other ids in {name}, such as {ids}"
            yield Observation(what, "copy the tokenizer from one folder to the other")


def _load_other(workspace: Workspace, request: ExplainRequest) -> Retriever | None:
    """Load the other checkpoint as its folder states, or else as the model is used."""
    if request.checkpoint is None:
        return None
    use = ModelFields(like=request.like, dtype=request.dtype, trust_code=request.trust_code)
    try:
        (other,) = load_models(workspace, (request.checkpoint,), use)
    except BenchError:
        if use.like is not None or not is_card(request.model):
            raise
        use = evolve(use, like=request.model)
        (other,) = load_models(workspace, (request.checkpoint,), use)
    return other


def _evidence(request: ExplainRequest, question: Question) -> list[SetupEvidence]:
    readers: list[tuple[Callable[[Any], SetupEvidence], object]] = [
        (question.of_vectors, request.vectors),
        (question.of_run, request.run_file),
        (question.of_query_scores, request.per_query),
        (question.of_published, request.published),
    ]
    evidence = [read(given) for read, given in readers if given]
    if not evidence and question.other:
        encoder = question.other.require_encoder()
        evidence.append(question.of_encoder(encoder, question.other.name))
    if not evidence:
        raise BenchError(
            "there is no evidence to explain",
            "Give --published, --per-query, --run-file, --vectors or --checkpoint.",
        )
    return evidence
