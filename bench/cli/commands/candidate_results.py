"""The results of a candidate: found among the stored ones, or made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.cli.options.decide import CheckOptions
from bench.evaluate.measures import parse_measure
from bench.evaluate.retrieval import LoadedModel, Options
from bench.gaps import Gaps
from bench.results.result import Stored
from bench.results.reuse import stored_or_new
from bench.workspace import Workspace
from datasets_cfg.records import Queries

DIGITS = 8  # of a fingerprint in a name


@dataclass
class CandidateResults:
    """The candidate's results, by collection.

    Attributes:
        failed: why there is none.
        queries: of the collections that were opened.
    """

    stored: dict[str, Stored] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    queries: dict[str, Queries] = field(default_factory=dict)


def own_name(candidate: LoadedModel, known: Sequence[Stored]) -> str:
    """The name that the candidate's results have.

    Its own, unless another recipe or other weights have results of that name: then the fingerprint
    is part of it, so that the name of a baseline never stands for two models.
    """
    name, recipe = candidate.name, candidate.model.recipe
    taken = any(
        stored.result.fingerprint != recipe.for_dataset(stored.collection).fingerprint
        for stored in known
        if stored.result.model == name
    )
    return f"{name}-{recipe.fingerprint[:DIGITS]}" if taken else name


def evaluate_all(
    space: Workspace,
    candidate: LoadedModel,
    name: str,
    collections: Sequence[str],
    folders: Mapping[str, str],
    known: Sequence[Stored],
    options: CheckOptions,
) -> CandidateResults:
    """Evaluate the candidate; a collection that fails is missing, the others are still evaluated.

    Args:
        name: of the results, see `own_name`.
        folders: what was typed for collections of a user's own.
        known: stored results, among which the candidate's are looked for.
    """
    results, gaps = CandidateResults(), Gaps()
    measures = None if options.measure is None else (parse_measure(options.measure).name,)
    choices = Options(depth=options.protocol.depth, measures=measures)
    names = (name, candidate.name)
    own = [stored for stored in known if stored.result.model in names]
    for wanted in collections:
        with gaps.kept(wanted):
            opened = space.open(folders.get(wanted, wanted), options.protocol.split)
            results.queries[wanted] = opened.dataset.queries
            job = space.prepare(opened, candidate.renamed(name), choices, known=own)
            results.stored[wanted] = stored_or_new(job, options.results)
    failed = {name: f"not evaluated: {reason}" for name, reason in gaps.reasons.items()}
    return replace(results, failed=failed)
