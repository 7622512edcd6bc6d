"""``explain``: which difference of set-up explains vectors, a run or scores of somebody else."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.cli.commands.common import load_model, make_workspace, open_endpoint
from bench.cli.options.commands import ExplainOptions
from bench.cli.terminal import print_result
from bench.evaluation.collection_search import LoadedModel
from bench.explain.deviation_search import answer_question
from bench.explain.evidence import SetupEvidence
from bench.explain.passes import find_base
from bench.explain.question import Question, save_canary
from bench.outcomes import ExitCode
from bench.workspace import Workspace
from foundation.errors import BenchError
from reports.explain import answer_text
from retrievers.models.locate import is_card


def explain(options: ExplainOptions) -> int:
    """Print an answer. The exit code is 0 even if nothing explains the evidence."""
    workspace = make_workspace(options.common, options.hardware)
    use = replace(options.model_options, endpoint_model=None)  # it belongs to --served
    model = load_model(workspace, options.model, use)
    datasets = workspace.datasets(options.on)
    names = [dataset.name for dataset in datasets]  # of a folder, not its path
    typed = dict(zip(names, workspace.expand_names(options.on), strict=True))
    question = Question(
        model,
        datasets,
        lambda name, split: workspace.dataset(typed[name], split),
        workspace.device,
        _load_other(workspace, options, model),
        announce=lambda line: print(line, file=sys.stderr),
    )
    if options.save_canary is not None:
        save_canary(options.save_canary, question.of_encoder(model.require_encoder(), "").given)
        print(f"{options.save_canary}: vectors of {model.name} saved", file=sys.stderr)
    evidence = _evidence(options, question)
    if not evidence:
        return ExitCode.OK
    answer = answer_question(question, evidence)
    return print_result(options.common.json, answer, answer_text(answer))


def _load_other(
    workspace: Workspace, options: ExplainOptions, model: LoadedModel
) -> LoadedModel | None:
    """Load the other checkpoint as its folder states, or else as the model is used.

    Without one, it is the base that the model's own files name, if it is on this machine.
    """
    if options.checkpoint is None:
        base = find_base(model.model)
        return LoadedModel(base, None) if base else None
    use = replace(options.model_options, adapter=None, set=())
    try:
        return load_model(workspace, options.checkpoint, use)
    except BenchError:
        if use.like is not None or not is_card(options.model):
            raise
        return load_model(workspace, options.checkpoint, replace(use, like=options.model))


def _evidence(options: ExplainOptions, question: Question) -> list[SetupEvidence]:
    readers: list[tuple[Callable[[Any], SetupEvidence], object]] = [
        (question.of_vectors, options.vectors),
        (question.of_canary, options.canary),
        (question.of_run, options.run_file),
        (question.of_query_scores, options.per_query),
        (question.of_published, options.published),
    ]
    evidence = [read(given) for read, given in readers if given]
    if options.served:
        encoder = open_endpoint(options.served, options.model_options, question.model)
        evidence.append(question.of_encoder(encoder, encoder.recipe.model))
    elif not evidence and question.other is not None and options.checkpoint:
        encoder = question.other.require_encoder()
        evidence.append(question.of_encoder(encoder, question.other.name))
    if not evidence and options.save_canary is None:
        raise BenchError(
            "there is no evidence to explain",
            "Give --published, --per-query, --run-file, --vectors, --served, --canary or "
            "--checkpoint",
        )
    return evidence
