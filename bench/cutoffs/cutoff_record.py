"""Records of ``cutoff``."""

from bench.comparing.statistics import Estimate
from bench.requests.outcomes import ExitCode
from foundation.records import Record


class Share(Estimate, kw_only=True):
    """Share of ``queries`` with its 95 % interval (Clopper and Pearson, 1934)."""

    low: float
    high: float
    queries: int


class CutoffPoint(Record):
    """What a cut-off keeps, and what it lets through.

    Attributes:
        cutoff: lowest score that is returned.
        kept: mean share of the relevant documents that remain.
        proved: lower 95 % bound of ``kept``, for this cut-off alone.
        returning: share of the queries without an answer that still return something.
    """

    cutoff: float
    kept: float
    proved: float
    returning: float


class CollectionCutoff(Record, kw_only=True):
    """What a cut-off does on one collection.

    Attributes:
        name: name of the collection.
        queries: number of queries with a relevant document among those that are returned, over
            which shares are averaged.
        keep: share of these documents that should remain.
        kept: share that remains.
        proved: lower 95 % bound of ``kept``.
        overlap: share of these queries whose best other document scores higher than the best
            relevant one.
        silent: share of the queries without an answer that return nothing. They are all queries of
            the collection after their relevant documents were taken out. None if a run file is too
            short for that.
        too_short: number of queries that a run file is too short for.
        silent_given: the same of the given queries without an answer; None if there are none.
        curve: the figure, from low to high cut-offs.
    """

    name: str
    queries: int
    keep: float
    kept: float
    proved: float
    overlap: float
    silent: Share | None
    too_short: int = 0
    silent_given: Share | None = None
    curve: tuple[CutoffPoint, ...] = ()

    @property
    def unanswerable(self) -> Share | None:
        """Share of the queries without an answer that return nothing, of given ones if possible."""
        return self.silent_given or self.silent

    @property
    def separates(self) -> bool:
        """True if a larger share of queries is silenced than of relevant documents may be lost.

        The queries are those without an answer, and their share is the lower limit.
        """
        silent = self.unanswerable
        return silent is not None and silent.low > 1 - self.keep


class SliceCutoff(Record, kw_only=True):
    """Cut-off of the queries of one collection that share a value.

    Attributes:
        name: name of the collection.
        value: value that the queries share.
        queries: number of queries with a relevant document among those that are returned.
        cutoff: lowest score to return; None if the queries are too few.
        done: what it does, under the names of slice and collection; None without a cut-off.
    """

    name: str
    value: str
    queries: int
    cutoff: float | None
    done: CollectionCutoff | None


class ModelCutoff(Record):
    """Cut-off of another model, and what it does on each collection."""

    model: str
    cutoff: float
    collections: tuple[CollectionCutoff, ...]


class ScoreCutoff(Record, kw_only=True):
    """The score below which to return nothing.

    Attributes:
        model: name of the model or run file.
        at: number of documents that a search returns.
        keep: share of the relevant documents among them that must remain; None to keep what
            another model keeps.
        queries: number of queries by collection that have a relevant document, among those that
            are returned if it was searched.
        searched: False if the queries are too few in any case.
        needed: number of queries, in each slice if there are any, that prove ``keep`` if nothing
            is lost; None for more than ten million.
        cutoff: lowest score to return; None if the queries are too few.
        collections: what it does.
        like: the other model.
        by: field by whose slices the queries are split; "" for one cut-off of all queries.
        slices: with ``by``, the cut-off of each slice, which has no other. All promises hold
            together with a confidence of 95 % (Bonferroni).
    """

    model: str
    at: int
    keep: float | None
    queries: dict[str, int]
    searched: bool = False
    needed: int | None = None
    cutoff: float | None = None
    collections: tuple[CollectionCutoff, ...] = ()
    like: ModelCutoff | None = None
    by: str = ""
    slices: tuple[SliceCutoff, ...] = ()

    @property
    def enough_queries(self) -> bool:
        """True if the queries prove ``keep`` if nothing is lost."""
        if self.keep is None:
            return True
        return self.needed is not None and min(self.queries.values()) >= self.needed

    @property
    def all_done(self) -> list[CollectionCutoff]:
        """What the cut-offs do, on each collection or slice."""
        return [*self.collections, *(one.done for one in self.slices if one.done)]

    @property
    def separates(self) -> bool:
        """True if the scores separate queries with and without an answer wherever one is chosen."""
        return all(one.separates for one in self.all_done)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""
        proved = all(one.done for one in self.slices) if self.slices else self.cutoff is not None
        found = proved and self.separates
        return ExitCode.OK if found else ExitCode.INCONCLUSIVE
