"""The use case ``deploy``: find the cheapest setting that loses no more than the margin.

Everything is searched in one stored set of vectors. The baseline is exact search of all dimensions
in float32. With several collections, the bound must be within the margin on each.
"""

import math
from dataclasses import replace
from pathlib import Path

import attrs
import msgspec
import numpy as np
from tqdm import tqdm

from bench.deploying.deployment import Deployment, TestedSetting
from bench.deploying.settings import TESTED_SHARE, Setting, choose_sequence, make_grid
from bench.deploying.trial import Trial
from bench.evaluation.compressed_search import bytes_per_document
from bench.gate.decision import LEVEL, GateSettings
from bench.requests.deciding import DeployRequest
from bench.requests.evaluating import IndexRequest
from bench.runner.run import index as write_index
from bench.runner.workspace import load_models, open_workspace
from foundation.errors import BenchError
from retrievers.encoders.views import compress
from retrievers.models.card import Compression


def deploy(request: DeployRequest) -> Deployment:
    """Test settings from mild to strong until the first one that is not proved.

    Raises:
        BenchError: wrong input, or a model without vectors.
    """
    if not request.margin:
        raise BenchError("no number of queries proves a margin of 0", "Use --margin .01.")
    GateSettings(margin=request.margin)  # raises if it is too large
    workspace = open_workspace(request)
    names = workspace.expand_names(request.on)
    _check_output(request, names)
    (model,) = load_models(workspace, (request.model,), request)
    model.require_encoder()
    whole = replace(model.model, recipe=compress(model.model.recipe, Compression()))
    model = replace(model, model=whole)
    trials = [Trial(workspace, workspace.open(name), model) for name in names]
    report = Deployment(
        model=model.name,
        recipe=model.model.recipe,
        measures={trial.dataset.name: trial.measure for trial in trials},
        queries={trial.dataset.name: trial.queries for trial in trials},
        margin=request.margin,
        provable=max(trial.bound(np.zeros(trial.queries)) for trial in trials),
        queries_for_margin=math.ceil(math.log(1 - LEVEL) / math.log(1 - request.margin)),
    )
    if report.margin < report.provable:
        return report
    return _search(request, trials, report)


def _check_output(request: DeployRequest, names: list[str]) -> None:
    """Raise if the index cannot be written."""
    if request.write is None:
        return
    if names != list(request.on) or len(names) > 1:
        problem = f"--write writes the index of one collection, not of {', '.join(request.on)}"
        raise BenchError(problem, "Name one with --on, or leave out --write.")
    if request.write.exists():
        raise BenchError(f"{request.write} exists already", "Choose another --write, or remove it.")


def _search(request: DeployRequest, trials: list[Trial], report: Deployment) -> Deployment:
    """Return the report with the tested settings and the answer."""
    timed = max(trials, key=lambda trial: len(trial.dataset.corpus))
    recipe, sizes = report.recipe, [len(trial.dataset.corpus) for trial in trials]
    grid = make_grid(recipe.dim, min(sizes), max(trial.depth for trial in trials))
    costs = {
        one: (
            bytes_per_document(compress(recipe, one.compression), one.index),
            one.bytes_read(max(sizes), recipe.dim),
        )
        for one in (Setting(), *grid)
    }
    limit = request.limit_bytes or math.inf
    allowed = [one for one in grid if costs[one][0] <= limit]
    if not allowed:
        fewest = min(costs[one][0] for one in grid)
        raise BenchError(
            f"--limit-bytes {request.limit_bytes} is below every setting",
            f"Use --limit-bytes {fewest} or more.",
        )
    shares = [trial.missed(allowed) for trial in trials]
    missed = {one: max(share[one] for share in shares) for one in allowed}
    sequence = choose_sequence(missed, costs, max(1, len(grid) // TESTED_SHARE))

    def test(setting: Setting, limit_ms: float) -> TestedSetting:
        latency, tests = timed.time_queries(setting), {}
        if latency[0].p50_ms <= limit_ms:
            tests = {one.dataset.name: one.test(setting, request.margin) for one in trials}
        return TestedSetting(
            name=setting.name,
            compression=setting.compression,
            index=str(setting.index),
            bytes_per_document=int(costs[setting][0]),
            latency=latency,
            missed=missed.get(setting, 0.0),
            tests=tests,
            proved=bool(tests) and all(one.bound <= request.margin for one in tests.values()),
        )

    limit_ms = request.limit_ms or math.inf
    baseline = test(Setting(), math.inf)
    tested: list[TestedSetting] = []
    for setting in tqdm(sequence, desc="deploy", unit=" settings"):
        tested.append(test(setting, limit_ms))
        if tested[-1].failed:  # which ends the proof
            break
    proved = [number for number, one in enumerate(tested) if one.proved]
    by_time = request.limit_bytes is not None
    best = min(proved, key=lambda number: tested[number].costs[:: -1 if by_time else 1], default=-1)
    if best >= 0 and request.write is not None:
        _write(request, sequence[best], recipe.dim, request.write)
    return msgspec.structs.replace(
        report,
        grid=len(grid),
        over_bytes=len(grid) - len(allowed),
        sequence=len(sequence),
        baseline=baseline,
        tested=tuple(tested),
        chosen=tested[best] if best >= 0 else None,
    )


def _write(request: DeployRequest, setting: Setting, dim: int, out: Path) -> None:
    """Write the index of a setting as ``index`` does, whose default may be fewer dimensions."""
    how = setting.compression
    names = {each.name for each in attrs.fields(DeployRequest)}
    names &= {each.name for each in attrs.fields(IndexRequest)}
    shared = {name: getattr(request, name) for name in names}
    shared |= {"dimensions": how.dimensions or dim, "precision": how.precision}
    write_index(IndexRequest(request.on[0], index=str(setting.index), out=out, **shared))
