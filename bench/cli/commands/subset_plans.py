"""The subsets of a quick check before anything is encoded: pools, what they cost, what fits."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.cli.options.decide import CheckOptions
from bench.comparing.panels import protocol_differences
from bench.evaluate.estimate import mean_tokens, measure_speed, readable
from bench.evaluate.judging import measure_names, protocol_of
from bench.evaluate.measures import parse_measure
from bench.evaluate.pipeline import Options
from bench.evaluate.runs import Run
from bench.gate.check import StoredModel
from bench.gate.evidence import check_protocol
from bench.gate.subset import DEEPEST, CandidatePool, pool_of
from bench.results.find import find_results
from bench.results.result import Protocol, Stored, save
from bench.speed.texts import natural
from bench.workspace import LoadedModel, OpenDataset, Workspace
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.encoders.protocol import Encoder

PROBE_S = 5.0  # of the budget, at most a tenth
MODELS = 2  # whose rankings are pooled beside BM25's, at least
MOST_POOLED = 6
BM25 = "bm25"


@dataclass(frozen=True)
class SubsetPlan:
    """One collection of a quick check, before its subset is chosen.

    Attributes:
        names: measures, the collection's main one first.
        others: stored results of what the candidate is compared with, by role.
        cutoff: of the deepest measure.
        document_s, query_s: seconds to encode a document on average (what is stored takes none),
            and all queries.
    """

    dataset: Dataset
    protocol: Protocol
    names: tuple[str, ...]
    others: Mapping[str, Stored]
    pool: CandidatePool
    cutoff: int
    document_s: float
    query_s: float

    @property
    def smallest_s(self) -> float:
        """Seconds without which a quick check means nothing."""
        return self.query_s + self.pool.smallest * self.document_s

    @property
    def rest_s(self) -> float:
        """Seconds for what is not needed."""
        return (len(self.pool.judged) - self.pool.smallest) * self.document_s


@dataclass(frozen=True)
class QuickCheck:
    """The candidate of ``check --quick``, and what it takes to evaluate it on subsets."""

    space: Workspace
    model: LoadedModel
    options: CheckOptions

    def encoder_on(self, collection: str) -> Encoder:
        """The candidate's encoder, with the prompts of one collection.

        Raises:
            BenchError: the candidate has none.
        """
        encoder = self.model.on(collection).encoder
        if encoder is None:
            raise BenchError(f"{self.model.name} encodes nothing: a full check takes no longer")
        return encoder


def plan_subsets(
    quick: QuickCheck,
    names: Sequence[str],
    folders: Mapping[str, str],
    others: Sequence[StoredModel],
) -> Iterator[SubsetPlan]:
    """Plan the subset of each collection before anything of it is encoded."""
    options, speed = quick.options, 0.0
    known = find_results(options.results.results)
    for name in names:
        opened = quick.space.open(folders.get(name, name), options.protocol.split)
        dataset, official = opened.dataset, opened.official
        depth = options.protocol.depth or dataset.facts.depth
        protocol = protocol_of(dataset, depth, dataset.corpus.sha256, official)
        measures, cutoff = _measures(dataset, options)
        roles = {other.role: other.results[name] for other in others}
        for other in others:
            check_protocol(name, other.name, protocol, other.results[name].result.protocol)
        runs = _pooled(dataset, protocol, measures, roles, known, quick)
        encoder = quick.encoder_on(name)
        missing = quick.space.store.plan(encoder, dataset.corpus).missing_rows
        if not missing:
            print(f"{name}: everything is encoded already; leave --quick out", file=sys.stderr)
        probe_s = min(PROBE_S, options.look.budget / 10)
        speed = speed or measure_speed(encoder, dataset.corpus, probe_s).tokens_per_s
        queries = natural(encoder, "queries", dataset.queries.texts)
        yield SubsetPlan(
            dataset=dataset,
            protocol=protocol,
            names=measures,
            others=roles,
            pool=pool_of(dataset, runs, set(map(_name, roles.values())), cutoff),
            cutoff=cutoff,
            document_s=mean_tokens(encoder, dataset.corpus) / speed * missing / len(dataset.corpus),
            query_s=queries.lengths.tokens / speed,
        )


def _measures(dataset: Dataset, options: CheckOptions) -> tuple[tuple[str, ...], int]:
    """The main measure and the one that decides, and how deep they look."""
    if dataset.answers is not None:
        raise BenchError(
            f"--quick needs judged documents, and {dataset.name} is judged by answers",
            "leave --quick out",
        )
    names = measure_names(
        dataset, [options.measure] if options.measure else [], options.protocol.depth
    )
    cutoff = max(parse_measure(name).cutoff for name in names)
    if cutoff > DEEPEST:
        raise BenchError(
            f"--quick needs measures with a cut-off of at most {DEEPEST}, not {', '.join(names)}",
            "choose one with --measure, such as nDCG@10, or leave --quick out",
        )
    return names, cutoff


def _pooled(
    dataset: Dataset,
    protocol: Protocol,
    measures: tuple[str, ...],
    roles: Mapping[str, Stored],
    known: Sequence[Stored],
    quick: QuickCheck,
) -> dict[str, Run]:
    """Rankings of the whole collection: of BM25, of those compared with, and of other models."""
    own = quick.model.on(dataset.name).model.recipe.fingerprint
    usable = {stored.result.fingerprint: stored for stored in roles.values()}
    newest = sorted(known, key=lambda stored: stored.result.conditions.time, reverse=True)
    for stored in newest:
        exact = stored.result.recipe is not None and stored.result.index in ("flat", "")
        if stored.collection != dataset.name or not exact:
            continue
        if not protocol_differences(stored.result.protocol, protocol):
            usable.setdefault(stored.result.fingerprint, stored)
    lexical = [stored for stored in usable.values() if _is_bm25(stored)]
    models = [stored for key, stored in usable.items() if not _is_bm25(stored) and key != own]
    if len(models) < MODELS:
        has = ", ".join(stored.result.model for stored in models) or "none"
        raise BenchError(
            f"--quick pools hard candidates from BM25 and {MODELS} models with stored results on "
            f"{dataset.name} besides the candidate; there is {has}",
            f"python -m bench run {dataset.name} --model ANOTHER, or leave --quick out",
        )
    lexical = lexical[:1] or [_run_bm25(dataset, protocol, measures, quick)]
    chosen = [*lexical, *roles.values(), *models[:MOST_POOLED]]
    return {
        name: stored.run() for name, stored in {_name(stored): stored for stored in chosen}.items()
    }


def _name(stored: Stored) -> str:
    return f"{stored.result.model} {stored.result.key}"


def _is_bm25(stored: Stored) -> bool:
    return stored.result.recipe is not None and stored.result.recipe.kind == BM25


def _run_bm25(
    dataset: Dataset, protocol: Protocol, measures: tuple[str, ...], quick: QuickCheck
) -> Stored:
    """Evaluated as ``run`` does, and kept."""
    space = quick.space
    print(f"{dataset.name}: bm25 has no stored result, and runs once", file=sys.stderr)
    options = Options(depth=protocol.depth, measures=measures)
    done = space.evaluate(OpenDataset(dataset, protocol.official), space.load(BM25), options)
    return save(done.result, done.scores, done.run, quick.options.results.results)


def limits(plans: Sequence[SubsetPlan], budget_s: float) -> list[int]:
    """Documents of each subset: what is needed, and a share of the time that is left.

    Raises:
        BenchError: what is needed takes longer than the budget.
    """
    needed = sum(plan.smallest_s for plan in plans)
    if needed > budget_s:
        raise BenchError(
            f"judged documents and hard candidates take about {readable(needed)} to encode here, "
            f"and the budget is {readable(budget_s)}",
            f"--budget {int(needed * 1.2) + 1}s, or fewer collections with --on",
        )
    rest = sum(plan.rest_s for plan in plans)
    share = min(1.0, (budget_s - needed) / rest) if rest else 1.0
    return [
        plan.pool.smallest + int(share * (len(plan.pool.judged) - plan.pool.smallest))
        for plan in plans
    ]
