"""The checkpoint under test: its name, and its results, found among the stored ones or made."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bench.evaluate.pipeline import in_domain
from bench.evaluate.retrieval import LoadedModel, Options
from bench.gaps import Gaps
from bench.results.location import Place
from bench.results.result import Evaluation
from bench.results.reuse import stored_or_new
from bench.workspace import Workspace
from datasets_cfg.records import Queries

DIGITS = 8  # of a fingerprint in a name


@dataclass(frozen=True)
class Candidate:
    """A checkpoint with its results, by collection.

    Attributes:
        measures: the mean of each measure.
        failed: why there is no result.
        trained_on: collections of the check that it was trained on, as its card says.
        queries: of the collections that were opened.
    """

    name: str
    entries: Mapping[str, Evaluation]
    measures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    trained_on: Collection[str] = ()
    queries: Mapping[str, Queries] = field(default_factory=dict)

    def is_in_domain(self, collection: str) -> bool:
        """True where it was trained on the collection."""
        return collection in self.trained_on or (
            collection in self.entries and self.entries[collection].result.in_domain
        )

    def text(self, collection: str, query_id: str) -> str:
        """Text of a query; "" where the collection is not at hand."""
        if collection not in self.queries:
            return ""
        queries = self.queries[collection]
        return dict(zip(queries.ids, queries.texts, strict=True)).get(query_id, "")


def own_name(model: LoadedModel, known: Sequence[Evaluation]) -> str:
    """The name that the candidate's results have.

    Its own, unless another recipe or other weights have results of that name: then the fingerprint
    is part of it, so that the name of a baseline never stands for two models.
    """
    named = [stored for stored in known if stored.result.model == model.name]
    if len(own_collections(model, named)) == len(named):
        return model.name
    return f"{model.name}-{model.model.recipe.fingerprint[:DIGITS]}"


def own_collections(model: LoadedModel, known: Sequence[Evaluation]) -> list[str]:
    """Collections on which the candidate has stored results, under whatever name."""
    recipe = model.model.recipe
    fingerprints = {
        name: recipe.for_dataset(name).fingerprint
        for name in {stored.collection for stored in known}
    }
    return [
        stored.collection
        for stored in known
        if stored.result.fingerprint == fingerprints[stored.collection]
    ]


def evaluate_candidate(
    space: Workspace,
    model: LoadedModel,
    name: str,
    collections: Mapping[str, str],
    known: Sequence[Evaluation],
    out: Place,
    options: Options,
    split: str | None = None,
) -> Candidate:
    """Evaluate what is missing; a collection that fails is a gap, the others are still evaluated.

    Args:
        name: of the results, see `own_name`.
        collections: what opens each of them, by name.
        known: stored results, among which the candidate's are looked for.
        out: where new results are kept.
    """
    gaps = Gaps()
    stored: dict[str, Evaluation] = {}
    queries: dict[str, Queries] = {}
    own = [one for one in known if one.result.model in (name, model.name)]
    for collection, opens in collections.items():
        with gaps.kept(collection):
            opened = space.open(opens, split)
            queries[collection] = opened.dataset.queries
            job = space.prepare(opened, model.renamed(name), options, known=own)
            stored[collection] = stored_or_new(job, out)
    return Candidate(
        name,
        entries=stored,
        measures={collection: one.result.measures for collection, one in stored.items()},
        failed={key: f"not evaluated: {reason}" for key, reason in gaps.reasons.items()},
        trained_on=[key for key in collections if in_domain(model.model.card, key)],
        queries=queries,
    )
