"""Records of ``tune``."""

from bench.requests.outcomes import ExitCode
from foundation.records import Record
from retrievers.models.card import Fusion


class Cost(Record):
    """What a pipeline costs on this machine. The cost of a pipeline is the sum of its parts'.

    Attributes:
        ms, p95_ms: median and 95th percentile of the milliseconds of a query.
        vector_bytes: bytes that a search reads of the vectors of a document, on average.
    """

    ms: float = 0.0
    p95_ms: float = 0.0
    vector_bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        size = self.vector_bytes + other.vector_bytes
        return Cost(self.ms + other.ms, self.p95_ms + other.p95_ms, size)


class TunedSetting(Record, kw_only=True):
    """A pipeline with its gain over the baseline.

    Attributes:
        name: short name for people.
        models: models and run files that take part, as they were typed.
        fusion: how their rankings are fused; None for one model alone.
        reranked: number of first documents that are reranked; 0 for none.
        costs: what a query costs; None if a run file takes part anywhere.
        score: mean score.
        gain: mean score minus that of the baseline.
        low, high: 95 % interval of the gain, for all settings together.
    """

    name: str
    models: tuple[str, ...]
    fusion: Fusion | None
    costs: Cost | None
    score: float
    gain: float
    low: float
    high: float
    reranked: int = 0

    @property
    def proved(self) -> bool:
        """True if its whole interval is above 0."""
        return self.low >= 0

    @property
    def cost(self) -> float:
        """Milliseconds of a query, or the number of rankings and of reranked documents."""
        return len(self.models) + self.reranked if self.costs is None else self.costs.ms


class Ceiling(Record):
    """Mean score of the best order of all documents that are among the first ``depth`` of any."""

    depth: int
    score: float


class Reranking(Record):
    """What reranking the first ``depth`` documents adds to a setting, and costs.

    Attributes:
        depth: number of documents.
        ms: milliseconds of a query.
        gain: mean score minus that of the setting.
        low, high: 95 % interval of the gain, for all depths together.
    """

    depth: int
    ms: float
    gain: float
    low: float
    high: float


class Tuning(Record, kw_only=True):
    """The cheapest setting that is proved better than a baseline, with all that were tested.

    Attributes:
        on: name of the collection.
        measure: measure of the scores.
        queries: number of queries, or of their groups.
        baseline: the first model or run file.
        baseline_score: its mean score.
        baseline_costs: its costs; None if a run file takes part.
        over_ms: number of settings that --limit-ms excludes.
        settings: all settings that were tested, the largest gain first.
        selection: how much of the largest gain comes from choosing it on these queries.
        ceilings: what no order of the first documents can exceed.
        chosen: the answer; None if no setting is proved better.
        card: card of the answer (TOML); "" for one ranking alone.
        first_card: card of the fusion that ``card`` reranks; "" if it reranks none.
        reranked: name of the setting whose reranking is shown: the cheapest one that is proved
            without a reranker, or the baseline.
        rerankings: what reranking it adds, by depth.
    """

    on: str
    measure: str
    queries: int
    baseline: str
    baseline_score: float
    baseline_costs: Cost | None
    over_ms: int = 0
    settings: tuple[TunedSetting, ...] = ()
    selection: float = 0.0
    ceilings: tuple[Ceiling, ...] = ()
    chosen: TunedSetting | None = None
    card: str = ""
    first_card: str = ""
    reranked: str = ""
    rerankings: tuple[Reranking, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""
        return ExitCode.OK if self.chosen else ExitCode.INCONCLUSIVE
