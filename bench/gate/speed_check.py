"""Is a model slower than another on this machine? Both take turns, A B B A, over the same texts.

What disturbs a machine comes and goes: two models that are timed one after the other differ by it,
two that alternate share it, and a drift cancels within each block of A B B A. The slowdown is the
median over blocks of the candidate's time by the baseline's, with a bootstrap interval over
blocks; a busy machine widens it until nothing is decided.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from bench.comparing.statistics import ALPHA, Resampling
from bench.evaluate.encode_documents import sample_documents
from bench.evaluate.estimate import measure_speed
from bench.evaluate.exact import ArrayVectors, exact_search
from bench.evaluate.pipeline import search_device
from bench.gate.verdicts import Decision, Word, worse
from bench.speed.encode import Ours
from bench.speed.machine import processor_name, timed
from bench.speed.records import Spread
from bench.speed.search import LATENCY_K, stand_ins
from bench.speed.texts import Texts, natural
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array
from foundation.records import Record
from retrievers.encoders.protocol import Encoder

Turn = Callable[[], float]  # does the work once; its seconds

BLOCKS = 16  # of encoding; latency has one a query
LATENCY_SHARE = 1 / 3  # of the time
DOCUMENTS = (4, 2_000)  # fewest and most of one pass
QUERIES = (16, 200)
ROWS = 30_000  # vectors that a query is searched among
REAL = 128  # of which so many are encoded, and the rest made like them
PROBE_S = 1.0


class Slowdown(Record, kw_only=True):
    """One kind of work, timed with both models.

    Attributes:
        unit: of ``candidate_rate`` and ``baseline_rate``, which are at the medians.
        candidate_s, baseline_s: seconds of the work twice, by block, in the order measured.
        slowdown: the candidate's time by the baseline's: median over blocks; above 1 is slower.
        low, high: 95 % interval of the slowdown.
    """

    what: str
    unit: str
    candidate_rate: float
    baseline_rate: float
    candidate_s: Spread
    baseline_s: Spread
    slowdown: float
    low: float
    high: float
    outcome: Word


class SpeedCheck(Record, kw_only=True, rename={"slowdowns": "paces"}):
    """Two models on one machine.

    Attributes:
        slower: slowdown that is tolerance.
        collection: whose texts were used.
        rows: vectors that a query was searched among.
        load: 1-minute load average of the machine before.
        slowdowns: by kind of work; ``paces`` in JSON.
    """

    baseline: str
    slower: float
    collection: str
    rows: int
    processor: str
    load: float
    slowdowns: tuple[Slowdown, ...]
    outcome: Word
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class SpeedTolerance:
    """Terms of a comparison of speed.

    Attributes:
        slower: slowdown that is allowed; above 1.
        seconds: to measure for in all.
    """

    slower: float = 1.1
    seconds: float = 30.0
    device: str = "auto"
    resampling: Resampling = Resampling()  # noqa: RUF009 - frozen


def compare_speed(
    candidate: Encoder, baseline: Encoder, dataset: Dataset, tolerance: SpeedTolerance
) -> SpeedCheck:
    """Encode documents and answer queries of a collection with both models by turns."""
    load, both = os.getloadavg()[0], (candidate, baseline)
    speeds = [measure_speed(model, dataset.corpus, PROBE_S).tokens_per_s for model in both]
    rows = min(len(dataset.corpus), ROWS)
    slowdowns = (
        _encoding(both, speeds, dataset, tolerance),
        _answering(both, rows, dataset, tolerance),
    )
    decisions = [
        Decision(measured.outcome, (_reason(measured, tolerance.slower),)) for measured in slowdowns
    ]
    outcome = worse(decisions).outcome
    reasons = [
        why for decision in decisions if decision.outcome == outcome for why in decision.reasons
    ]
    return SpeedCheck(
        baseline=baseline.recipe.model,
        slower=tolerance.slower,
        collection=dataset.name,
        rows=rows,
        processor=processor_name(),
        load=load,
        slowdowns=slowdowns,
        outcome=outcome,
        reasons=tuple(reasons),
    )


def slowdown(
    candidate: Float64Array, baseline: Float64Array, resampling: Resampling
) -> tuple[float, ...]:
    """Median over blocks of the ratio of seconds, and its 95 % percentile bootstrap interval.

    Args:
        candidate, baseline: float64 ``(blocks,)``, of the same blocks.
    """
    ratios = candidate / baseline
    rng = np.random.default_rng(resampling.seed)
    drawn = rng.integers(len(ratios), size=(resampling.resamples, len(ratios)))
    medians = np.median(ratios[drawn], axis=1)
    low, high = np.quantile(medians, [ALPHA / 2, 1 - ALPHA / 2])
    return float(np.median(ratios)), float(low), float(high)


def outcome_of(low: float, high: float, slower: float) -> Word:
    """REGRESSION beyond what is allowed, OK within, INCONCLUSIVE where the interval holds both."""
    if low > slower:
        return "REGRESSION"
    return "OK" if high <= slower else "INCONCLUSIVE"


def by_turns(
    candidate: Turn, baseline: Turn, blocks: int, said: str = ""
) -> tuple[Float64Array, Float64Array]:
    """Seconds of the work twice in each block of A B B A: float64 ``(blocks,)`` each.

    Args:
        said: beside the progress; none is shown without.
    """
    seconds = np.zeros((blocks, 2))
    for block in tqdm(seconds, desc=said, unit=" blocks") if said else seconds:
        for side in (0, 1, 1, 0):
            block[side] += (candidate, baseline)[side]()
    return seconds[:, 0], seconds[:, 1]


def _encoding(
    both: Sequence[Encoder], speeds: Sequence[float], dataset: Dataset, tolerance: SpeedTolerance
) -> Slowdown:
    """Passes over the same documents, so long that all blocks take the time that is there."""
    _, texts = sample_documents(dataset.corpus, DOCUMENTS[1])
    texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]
    name = f"documents of {dataset.name}"
    all_texts = [natural(encoder, name, texts) for encoder in both]
    each_s = sum(own.tokens.mean() / speed for own, speed in zip(all_texts, speeds, strict=True))
    time_s = (1 - LATENCY_SHARE) * tolerance.seconds
    count = min(max(DOCUMENTS[0], int(time_s / (2 * BLOCKS * each_s))), DOCUMENTS[1])
    parts = [own.first(count) for own in all_texts]
    turns = [_pass(Ours(encoder, ""), part) for encoder, part in zip(both, parts, strict=True)]
    for turn in turns:  # weights load, caches warm up
        turn()
    seconds = by_turns(turns[0], turns[1], BLOCKS, "speed: encoding")
    tokens = [2 * part.lengths.tokens for part in parts]
    rates = [total / float(np.median(s)) for total, s in zip(tokens, seconds, strict=True)]
    unit = f"{parts[0].counted_in}/s"
    return _slowdown_of(f"encoding {count:,} {name}", unit, rates, seconds, tolerance)


def _pass(ours: Ours, texts: Texts) -> Turn:
    return lambda: ours.encode(texts).seconds


def _answering(
    both: Sequence[Encoder], rows: int, dataset: Dataset, tolerance: SpeedTolerance
) -> Slowdown:
    """One query at a time: encoded, and searched exactly among vectors like the collection's."""
    queries = list(dict.fromkeys(dataset.queries.texts))[: QUERIES[1]]
    sides = [_answers(encoder, queries, rows, dataset, tolerance.device) for encoder in both]
    took = [side(queries[0]) + side(queries[0]) for side in sides]
    time_s = LATENCY_SHARE * tolerance.seconds
    count = min(max(QUERIES[0], int(time_s / sum(took))), QUERIES[1])
    asked = tqdm(range(count), desc="speed: answering", unit=" queries")
    blocks = [_block(sides, queries[i % len(queries)]) for i in asked]
    seconds = (np.array([a for a, _ in blocks]), np.array([b for _, b in blocks]))
    rates = [1000 * float(np.median(s)) / 2 for s in seconds]
    what = f"answering one of {count:,} queries among {rows:,} vectors"
    return _slowdown_of(what, "ms", rates, seconds, tolerance)


def _block(sides: Sequence[Callable[[str], float]], query: str) -> tuple[float, float]:
    a, b = by_turns(lambda: sides[0](query), lambda: sides[1](query), 1)
    return float(a[0]), float(b[0])


def _answers(
    encoder: Encoder, queries: Sequence[str], rows: int, dataset: Dataset, device: str
) -> Callable[[str], float]:
    """A function that answers a query, and returns its seconds."""
    titles, texts = sample_documents(dataset.corpus, min(rows, REAL))
    documents = stand_ins(encoder.encode_documents(titles, texts), rows)
    encoder.encode_queries(queries[:1])
    vectors, ranks, place = ArrayVectors(documents), np.arange(rows), search_device(device)
    k = min(LATENCY_K, rows)

    def answer(query: str) -> None:
        exact_search(vectors, encoder.encode_queries([query]), k, ranks, device=place)

    return lambda query: timed(lambda: answer(query))[0]


def _slowdown_of(
    what: str,
    unit: str,
    rates: Sequence[float],
    seconds: tuple[Float64Array, Float64Array],
    tolerance: SpeedTolerance,
) -> Slowdown:
    ratio, low, high = slowdown(*seconds, tolerance.resampling)
    return Slowdown(
        what=what,
        unit=unit,
        candidate_rate=rates[0],
        baseline_rate=rates[1],
        candidate_s=Spread.of(seconds[0].tolist()),
        baseline_s=Spread.of(seconds[1].tolist()),
        slowdown=ratio,
        low=low,
        high=high,
        outcome=outcome_of(low, high, tolerance.slower),
    )


def _reason(slowdown: Slowdown, slower: float) -> str:
    interval = f"{slowdown.low:.2f} to {slowdown.high:.2f}"
    factor = f"{slowdown.what} takes {slowdown.slowdown:.2f} times as long ({interval})"
    return {
        "REGRESSION": f"{factor}, more than the {slower:.2f} allowed",
        "INCONCLUSIVE": f"{factor}: the {slower:.2f} allowed is inside; measure longer, or on an "
        "idle machine",
    }.get(slowdown.outcome, f"{factor}, {slower:.2f} is allowed")
