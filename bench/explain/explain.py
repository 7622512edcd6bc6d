"""The answer to a question: which difference of set-up explains the evidence."""

import sys
from collections.abc import Callable
from typing import Any

from attrs import evolve

from bench.evaluation.collection_search import LoadedModel
from bench.explain.answer import Answer
from bench.explain.deviation_search import answer_question
from bench.explain.evidence import SetupEvidence
from bench.explain.passes import find_base
from bench.explain.question import Question, save_canary
from bench.requests.deciding import ExplainRequest
from bench.requests.fields import ModelFields
from bench.runner.workspace import Workspace, load_models, open_endpoint, open_workspace
from foundation.errors import BenchError
from retrievers.models.locate import is_card


def explain(request: ExplainRequest) -> Answer | None:
    """Find the differences of set-up that explain the evidence.

    Returns:
        The answer, which may be that nothing explains it; None if vectors were only saved.

    Raises:
        BenchError: wrong input, or no evidence.
    """
    workspace = open_workspace(request)
    model = _load(workspace, request.model, evolve(request, endpoint_model=None))  # of the server
    datasets = workspace.datasets(request.on)
    names = [dataset.name for dataset in datasets]  # of a folder, not its path
    typed = dict(zip(names, workspace.expand_names(request.on), strict=True))
    question = Question(
        model,
        datasets,
        lambda name, split: workspace.dataset(typed[name], split),
        workspace.device,
        _load_other(workspace, request, model),
        announce=lambda line: print(line, file=sys.stderr),
    )
    if request.save_canary is not None:
        save_canary(request.save_canary, question.of_encoder(model.require_encoder(), "").given)
        print(f"{request.save_canary}: vectors of {model.name} saved", file=sys.stderr)
    evidence = _evidence(request, question)
    return answer_question(question, evidence) if evidence else None


def _load_other(
    workspace: Workspace, request: ExplainRequest, model: LoadedModel
) -> LoadedModel | None:
    """Load the other checkpoint as its folder states, or else as the model is used.

    Without one, it is the base that the model's own files name, if it is on this machine.
    """
    if request.checkpoint is None:
        base = find_base(model.model)
        return LoadedModel(base, None) if base else None
    use = ModelFields(
        like=request.like,
        endpoint_model=request.endpoint_model,
        dtype=request.dtype,
        trust_code=request.trust_code,
    )
    try:
        return _load(workspace, request.checkpoint, use)
    except BenchError:
        if use.like is not None or not is_card(request.model):
            raise
        return _load(workspace, request.checkpoint, evolve(use, like=request.model))


def _load(workspace: Workspace, name: str, fields: ModelFields) -> LoadedModel:
    """Load one model."""
    (model,) = load_models(workspace, (name,), fields)
    return model


def _evidence(request: ExplainRequest, question: Question) -> list[SetupEvidence]:
    readers: list[tuple[Callable[[Any], SetupEvidence], object]] = [
        (question.of_vectors, request.vectors),
        (question.of_canary, request.canary),
        (question.of_run, request.run_file),
        (question.of_query_scores, request.per_query),
        (question.of_published, request.published),
    ]
    evidence = [read(given) for read, given in readers if given]
    if request.served:
        encoder = open_endpoint(request.served, request.endpoint_model, question.model)
        evidence.append(question.of_encoder(encoder, encoder.recipe.model))
    elif not evidence and question.other is not None and request.checkpoint:
        encoder = question.other.require_encoder()
        evidence.append(question.of_encoder(encoder, question.other.name))
    if not evidence and request.save_canary is None:
        raise BenchError(
            "there is no evidence to explain",
            "Give --published, --per-query, --run-file, --vectors, --served, --canary or "
            "--checkpoint",
        )
    return evidence
