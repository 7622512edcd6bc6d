"""The public Python API: evaluate a model, score a run, read results, compare, decide, and train.

Each function builds the same request as the command of its name and calls the same use case. Its
arguments are the fields of the request, which also documents them.
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import attrs

from bench.requests import deciding, evaluating, training
from bench.requests.fields import Request, describe_fields, ordered_fields
from foundation.errors import BenchError, did_you_mean
from foundation.files import local_path

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from bench.comparing.comparison import ComparisonReport
    from bench.comparing.judging_list import JudgeReport
    from bench.comparing.pairs import Comparison
    from bench.cutoffs.cutoff_record import ScoreCutoff
    from bench.deploying.deployment import Deployment
    from bench.evaluation.result_record import Evaluation
    from bench.experiments.report_record import Report
    from bench.explain.ledger import Ledger
    from bench.gate.check_record import Check
    from bench.tuning.tuning_record import Tuning
    from retrievers.training.finetune.finetune import FinetuneResult
    from retrievers.training.pretrain.pretrain import PretrainResult

P = ParamSpec("P")
R = TypeVar("R", bound=Request)
T = TypeVar("T")


def takes(request: Callable[P, R]) -> Callable[[Callable[[R], T]], Callable[P, T]]:
    """Return a decorator that gives a function of a request the fields of the request as arguments.

    The function raises a TypeError for an argument that is unknown, missing or of a wrong type.
    Further positional arguments become the field ``rest`` of the request.
    """
    made: Any = request
    positional = sum(not each.kw_only for each in attrs.fields(made))

    def decorate(function: Callable[[R], T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> T:
            own: tuple[Any, ...] = arguments
            named: dict[str, Any] = keywords
            if made.rest and len(own) > positional:
                own, named = own[:positional], {made.rest: own[positional:], **named}
            try:
                built = made(*own, **named)
            except TypeError as error:
                raise _as_type_error(function.__name__, error, request) from None
            return function(built)

        signature = _signature(request, function)
        call.__signature__ = signature  # type: ignore[attr-defined]
        described, notes = describe_fields(request), describe_fields(request, "In Python")
        fields = ""
        for name in signature.parameters:
            note = f" In Python: {notes[name][0]}" if name in notes else ""
            fields += f"    {name}: {described[name][0]}{note}\n"
        summary, _, rest = (inspect.getdoc(function) or "").partition("\n\n")
        type_error = "    TypeError: an argument is unknown or of a wrong type."
        call.__doc__ = f"{summary}\n\nArgs:\n{fields}\n{rest}\n{type_error}"
        return call

    return decorate


def _signature(request: Any, function: Callable[..., Any]) -> inspect.Signature:
    """Return the arguments of a request, its own before the shared ones, for a function."""
    parameters = inspect.signature(request).parameters
    ordered = (parameters[each.name] for each in ordered_fields(request))
    arguments = sorted(ordered, key=lambda each: each.kind)
    returned = inspect.signature(function).return_annotation
    return inspect.Signature(arguments, return_annotation=returned)


def _as_type_error(function: str, error: TypeError, request: Any) -> TypeError:
    """Return an error about the arguments of a function in terms of its name and arguments."""
    message = re.sub(r"^\w+\.__init__\(\) ", "", str(error))
    if unknown := re.search(r"unexpected keyword argument '(\w+)'", message):
        known = [field.name for field in attrs.fields(request)]
        meant = did_you_mean(unknown[1], known, f"Its arguments are {', '.join(known)}.")
        message = f"got an {unknown[0]}. {meant}"
    return TypeError(f"bench.{function}(): {message}")


@takes(evaluating.EvaluateRequest)
def evaluate(request: evaluating.EvaluateRequest) -> "Evaluation":
    """Evaluate one model on one collection, like ``bench run``.

    Raises:
        BenchError: wrong input. The attribute ``hint`` has the advice that the command line prints.
    """
    from bench.runner.run import evaluate

    return evaluate(request)


@takes(evaluating.ScoreRequest)
def score(request: evaluating.ScoreRequest) -> "Evaluation":
    """Score a ranking with the collection's own protocol, like ``bench score``.

    Raises:
        BenchError: wrong input.
    """
    from bench.runner.run import score

    return score(request)


def load_result(path: str | Path) -> "Evaluation":
    """Load one result from ``path``: its folder or its ``result.json``.

    Raises:
        BenchError: the result does not exist, is damaged, or contradicts itself.
    """
    from bench.result_store.result import load

    return load(local_path(path))


def results(folder: str | Path = "results") -> "pd.DataFrame":
    """Read all results below ``folder``.

    Returns:
        A row for each result and measure, sorted by collection, model and time, with the columns
        ``collection``, ``split``, ``model``, ``measure``, ``value`` (the mean, unrounded),
        ``is_main`` (whether it is the collection's main measure), ``queries``, ``unanswered``,
        ``judged_at_10``, ``in_domain``, ``official`` (None if nothing is published for the
        collection), ``depth``, ``index`` (``flat`` is exact; "" for BM25 and run files), ``time``,
        ``key`` (equal for the same model, protocol and index) and ``folder``, which `load_result`
        accepts.

    Raises:
        BenchError: there are no results, or one is damaged or contradicts itself.
    """
    import pandas as pd

    from bench.result_store.find import find_results

    stored = find_results(local_path(folder))
    if not stored:
        raise BenchError(f"{folder} has no results", "Use the folder that `run` wrote to.")
    frame = pd.DataFrame([row for each in stored for row in _result_rows(each)])
    frame["time"] = pd.to_datetime(frame["time"], utc=True)
    frame["judged_at_10"] = frame["judged_at_10"].astype(float)  # None if nothing is judged
    order = ["collection", "model", "time", "key"]
    return frame.sort_values(order, kind="stable", ignore_index=True)


def _result_rows(evaluation: "Evaluation") -> list[dict[str, object]]:
    """Return a row for each measure of an evaluation."""
    record = evaluation.record
    protocol = record.protocol
    return [
        {
            "collection": protocol.collection,
            "split": protocol.split,
            "model": record.model,
            "measure": measure,
            "value": value,
            "is_main": measure == record.main_measure,
            "queries": record.queries,
            "unanswered": record.unanswered,
            "judged_at_10": record.judged_at_10,
            "in_domain": record.in_domain,
            "official": protocol.official,
            "depth": protocol.depth,
            "index": record.index,
            "time": record.conditions.time,
            "key": record.key,
            "folder": str(evaluation.folder),
        }
        for measure, value in evaluation.measures.items()
    ]


@dataclass(frozen=True)
class ComparisonResult:
    """Comparison of models on the collections that both of a pair were evaluated on.

    Attributes:
        report: comparisons of all pairs, as printed by ``bench compare --json``.
    """

    report: "ComparisonReport"

    def __repr__(self) -> str:
        """Return the names and the difference on each collection, a line for each pair."""
        lines = []
        for pair in self.report.comparisons:
            rows = [(row.on, row.paired) for row in pair.collections]
            differences = "; ".join(
                f"{name} {test.difference:+.4f}" if test else f"{name} -" for name, test in rows
            )
            lines.append(f"<ComparisonResult {pair.a} minus {pair.b}: {differences}>")
        return "\n".join(lines)

    @property
    def record(self) -> "Comparison":
        """All figures of the first pair."""
        return self.report.comparisons[0]

    @property
    def table(self) -> "pd.DataFrame":
        """Means, difference (a minus b), 95 % interval and p-values, a row for each collection.

        ``better`` is the name of the better model by Holm's p at 5 %, or "" if neither is better.
        Several pairs follow each other.
        """
        import pandas as pd

        from reports.comparison import comparison_rows

        frames = [comparison_rows(pair).frame() for pair in self.report.comparisons]
        return pd.concat(frames) if len(frames) > 1 else frames[0]

    @property
    def slices(self) -> "pd.DataFrame":
        """The same for each slice of ``by``, the largest loss of a first.

        ``p_adjusted`` is corrected over all slices, collections and pairs.
        """
        import pandas as pd

        from reports.comparison import slice_rows

        frames = [slice_rows(pair).frame() for pair in self.report.slices]
        return pd.concat(frames) if frames else pd.DataFrame()


@takes(deciding.CompareRequest)
def compare(request: deciding.CompareRequest) -> ComparisonResult:
    """Compare models with intervals and p-values, like ``bench compare``.

    Raises:
        BenchError: different protocols, no common collection, or too few resamples.
    """
    from bench.comparing.comparison import compare

    return ComparisonResult(compare(request))


@takes(deciding.CheckRequest)
def check(request: deciding.CheckRequest) -> "Check":
    """Decide whether a candidate may be released, like ``bench check``.

    Returns:
        The verdict: ``outcome`` (OK, REGRESSION, INCONCLUSIVE, MISSING or DRIFT), ``exit_code``,
        ``reasons``, the figures in ``rows`` and ``mean``, and the data frame ``slices``.

    Raises:
        BenchError: wrong input, different protocols, or too few resamples.
    """
    from bench.gate.check import check

    return check(request)


@takes(deciding.ExplainRequest)
def ledger(request: deciding.ExplainRequest) -> "Ledger":
    """Show where a search system loses what exact search finds, like ``bench explain SYSTEM``.

    Returns:
        Changes of each measure from exact search to the system's answers, in ``rows``, by query
        too, with ``totals`` and ``exit_code``.

    Raises:
        BenchError: wrong input, or the system fails.
    """
    from bench.explain.explain import explain_system

    return explain_system(request)


@takes(deciding.DeployRequest)
def deploy(request: deciding.DeployRequest) -> "Deployment":
    """Find the smallest deployment of a model that is not worse, like ``bench deploy``.

    Returns:
        The answer in ``chosen``, or None, and all ``tested`` settings.

    Raises:
        BenchError: wrong input.
    """
    from bench.deploying.deploy import deploy

    return deploy(request)


@takes(deciding.CutoffRequest)
def cutoff(request: deciding.CutoffRequest) -> "ScoreCutoff":
    """Find the score below which to return nothing, like ``bench cutoff``.

    Returns:
        The lowest score to return in ``cutoff``, or None, and what it does in ``collections``.

    Raises:
        BenchError: wrong input.
    """
    from bench.cutoffs.cutoff import cutoff

    return cutoff(request)


@takes(deciding.TuneRequest)
def tune(request: deciding.TuneRequest) -> "Tuning":
    """Find the cheapest pipeline that is proved better than a baseline, like ``bench tune``.

    Returns:
        The answer in ``chosen``, or None, and all ``settings``.

    Raises:
        BenchError: wrong input.
    """
    from bench.tuning.tune import tune

    return tune(request)


@takes(deciding.JudgeRequest)
def judge(request: deciding.JudgeRequest) -> "JudgeReport":
    """List unjudged documents that settle a comparison, or import judgements, like ``bench judge``.

    Raises:
        BenchError: a result or the collection is missing, the measure has no bounds, or a line of a
            judged list is wrong.
    """
    from bench.comparing.judging_list import judge
    from reports.judging_list import write_list

    return judge(request, write_list)


@takes(deciding.LeaderboardRequest)
def leaderboard(request: deciding.LeaderboardRequest) -> "pd.DataFrame":
    """Compare all stored results, the best model first, like ``bench leaderboard``.

    Returns:
        A row for each model and recipe, indexed by name; a column for each collection and suite
        with the mean of its measure, NaN if it was not evaluated; and ``group``: 1 for the best
        model and all models that do not differ significantly from it at 5 %, if models are ranked.

    Raises:
        BenchError: there are no results, one is damaged, or a name is unknown.
    """
    from bench.boards.leaderboard import leaderboard
    from reports.leaderboard import scores

    return scores(leaderboard(request), request.measure).frame().set_index("model")


def plot(comparison: ComparisonResult) -> "Figure":
    """Draw the forest plot of a ``comparison``: each difference with its 95 % interval.

    Returns:
        A matplotlib figure; ``figure.savefig("comparison.pdf")`` writes it.

    Raises:
        ImportError: matplotlib is not installed. Run ``pip install 'retrieval-bench[plots]'``.
        TypeError: this is not the result of `compare`.
    """
    if not isinstance(comparison, ComparisonResult):
        raise TypeError(
            f"bench.plot() draws the result of bench.compare(), not a {type(comparison).__name__}"
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from reports.plots import plot_differences

    record = comparison.record
    tests = [*(row.paired for row in record.suites), *(row.paired for row in record.collections)]
    differences = [test for test in tests if test]
    figure = Figure(figsize=(7, 2 + 0.3 * len(differences)), layout="constrained")
    FigureCanvasAgg(figure)
    plot_differences(figure, differences, f"{record.a} − {record.b}")
    return figure


@takes(training.PretrainRequest)
def pretrain(request: training.PretrainRequest) -> "PretrainResult":
    """Pre-train an encoder on the documents of collections, like ``bench pretrain``.

    The same call continues an interrupted training, and returns the result of a finished one.

    Raises:
        BenchError: wrong input, the folder holds something else, the disk or memory is too small,
            or the loss is not finite.
    """
    from bench.training.trainings import pretrain

    return pretrain(request)


@takes(training.FinetuneRequest)
def finetune(request: training.FinetuneRequest) -> "FinetuneResult":
    """Fine-tune an encoder on the judged queries of collections, like ``bench finetune``.

    Queries with the text of a test query of these collections are left out, with a warning. The
    same call continues an interrupted training, and returns the result of a finished one.

    Raises:
        BenchError: wrong input, a training query is evaluated, the folder holds something else, the
            disk or memory is too small, or the loss is not finite.
    """
    from bench.training.trainings import finetune

    return finetune(request)


@takes(training.AblateRequest)
def ablate(request: training.AblateRequest) -> "Report":
    """Run an ablation, like ``bench ablate``: train and evaluate every row with several seeds.

    The report is also written to ``OUT/NAME/report.md``. The same call continues an interrupted
    experiment; finished cells are not computed again.

    Returns:
        The report. A failed cell is a gap (``report.gaps``).

    Raises:
        BenchError: the grid is invalid, a collection or model is missing, or a training query is
            evaluated.
    """
    from bench.experiments.ablate import ablate
    from reports.experiment import write_report

    return ablate(request, write_report)
