"""The search for the deviations that explain the evidence: singles, then pairs, then a verdict."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from bench.explain.evidence import CEILING, FLOOR, Fit, SetupEvidence, combine_fits
from bench.explain.records import Verdict
from bench.explain.setup import ROUNDING, Deviation, EvaluationSetup, forward_key
from foundation.errors import BenchError

FULL_SINGLES = 10  # hypotheses that the probe leaves over, evaluated on all items
PROBED_PAIRS = 160
FULL_PAIRS = 6
PAIRS_AFTER_A_FIT = 12
MOST_CHANCE = 0.05  # expected coincidences above which an agreement names no cause


@dataclass(frozen=True)
class Explanation:
    """Deviations that explain the evidence together.

    Attributes:
        equals: names of other deviations that this evidence cannot tell from these.
    """

    deviations: tuple[Deviation, ...]
    setup: EvaluationSetup
    fit: Fit
    equals: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The deviations in words."""
        return " and ".join(deviation.name for deviation in self.deviations)


@dataclass(frozen=True)
class Findings:
    """Result of a search.

    Attributes:
        base: fit of the set-up as it is.
        explanations: that fit, the best first; empty if none does.
        closest: the best that does not fit, or None.
        chance: number of explanations that are expected to agree by coincidence.
        singles, pairs: how many were tried.
    """

    verdict: Verdict
    base: Fit
    explanations: tuple[Explanation, ...]
    closest: Explanation | None
    chance: float
    singles: int
    pairs: int


@dataclass
class DeviationSearch:
    """A search over deviations.

    Attributes:
        setup: the model's own.
        deviations: all singles.
        evidence: of one or several kinds, all of which an explanation must fit.
        announce: called with a line of progress.
        deadline: value of the monotonic clock after which no pair is tried.
    """

    setup: EvaluationSetup
    deviations: Sequence[Deviation]
    evidence: Sequence[SetupEvidence]
    announce: Callable[[str], None] = lambda line: None
    deadline: float = math.inf

    def run(self) -> Findings:
        """Return what explains the evidence."""
        base = self._fit(self.setup, False)
        probed = self._fit_all([(deviation,) for deviation in self.deviations], True)
        tried = self._evaluate_all(_keep_undecided(probed)[:FULL_SINGLES])
        accepted = self._accept(tried, base)
        pairs: list[Explanation] = []
        if accepted[0].fit.is_rough if accepted else not base.fits:
            self.announce("no single deviation explains it exactly: trying pairs")
            pairs = self._fit_all(self._rank_pairs(probed), True)
            tried += self._evaluate_all(_keep_undecided(pairs)[:FULL_PAIRS])
            tried.sort(key=lambda each: -each.fit.likelihood)
            accepted = self._accept(tried, base)
        chance = self._chance([*probed, *pairs])
        closest = max(tried, key=lambda each: each.fit.likelihood, default=None)
        return Findings(
            verdict=_verdict(base, accepted, chance),
            base=base,
            explanations=tuple(_group_equal(accepted)),
            closest=closest if not accepted and closest and closest.fit.beats(base) else None,
            chance=chance,
            singles=len(probed),
            pairs=len(pairs),
        )

    def _fit(self, setup: EvaluationSetup, probe: bool) -> Fit:
        return combine_fits([each.fit(setup, probe) for each in self.evidence])

    def _evaluate_all(self, probed: Sequence[Explanation]) -> list[Explanation]:
        return self._fit_all([each.deviations for each in probed], False)

    def _fit_all(self, all_: Sequence[tuple[Deviation, ...]], probe: bool) -> list[Explanation]:
        """Return hypotheses with their fit, to the probe or to all, the most likely first.

        Those that are impossible, such as an absent split, are left out.
        """
        explanations = []
        since_exact = 0
        for place, deviations in enumerate(all_, 1):
            setup = self.setup
            for deviation in deviations:
                setup = deviation.on(setup)
            try:
                fit = self._fit(setup, probe)
            except BenchError as error:
                self.announce(f"left out a hypothesis: {error}")
                continue
            explanations.append(Explanation(deviations, setup, fit))
            if place % 10 == 0:
                self.announce(f"{place} of {len(all_)} hypotheses tried")
            # Pairs come best first: soon after one that fits, the rest are farther off.
            is_exact = fit.fits and not fit.is_rough
            since_exact += bool(since_exact) or (is_exact and len(deviations) > 1)
            is_late = len(deviations) > 1 and time.monotonic() > self.deadline
            if since_exact > PAIRS_AFTER_A_FIT or is_late:
                break
        return sorted(explanations, key=lambda each: -each.fit.likelihood)

    def _rank_pairs(self, probed: Sequence[Explanation]) -> Sequence[tuple[Deviation, ...]]:
        """Return pairs of different kinds, those first whose halves come closest.

        A deviation that changes nothing of the evidence is in no pair. If documents of the whole
        collection are encoded, at most one of a pair may need new forward passes of them.
        """
        costly = any(each.needs_collection for each in self.evidence)
        base = self._fit(self.setup, True)
        # If the dimension differs, nothing but a cut changes the fit: then all are combined.
        is_cut = bool((base.errors >= CEILING).all())
        singles = [
            each for each in probed if is_cut or not np.array_equal(each.fit.errors, base.errors)
        ]
        distance = {
            each.name: np.log10(np.maximum(each.fit.errors, FLOOR)).mean() for each in singles
        }
        pairs = sorted(
            combinations(singles, 2),
            key=lambda pair: sum(sorted(distance[each.name] for each in pair) * np.array([2, 1])),
        )
        chosen = [(*a.deviations, *b.deviations) for a, b in pairs]
        return [
            (a, b)
            for a, b in chosen
            if a.kind != b.kind
            and not set(a.changes) & set(b.changes)
            and not (costly and self._encodes(a) and self._encodes(b))
        ][:PROBED_PAIRS]

    def _encodes(self, deviation: Deviation) -> bool:
        return forward_key(deviation.on(self.setup)) != forward_key(self.setup)

    def _accept(self, tried: Sequence[Explanation], base: Fit) -> list[Explanation]:
        """Return explanations that fit, better than the set-up as it is."""
        good = [
            each
            for each in tried
            if each.fit.fits
            and each.fit.beats(base)
            and not (base.fits and each.deviations[0].kind == ROUNDING)
        ]
        # Another that fits is listed too, unless the best is closer on most items.
        return [each for each in good if not good[0].fit.beats(each.fit)]

    def _chance(self, tried: Sequence[Explanation]) -> float:
        """Return how many hypotheses are expected to agree with unrelated scores by coincidence.

        For each number: the density of hypotheses around it, within a hundred tolerances, times
        the tolerance. Vectors, runs and scores by query have too many items to agree by chance.
        """
        errors = [each.fit.errors for each in tried if each.fit.level is None]
        most = max(map(len, errors), default=0)
        if not 0 < most <= 12:
            return 0.0
        near = np.array([each for each in errors if len(each) == most])
        shares = [max((near[:, place] <= 100).mean() / 100, 1e-4) for place in range(near.shape[1])]
        return float(len(errors) * np.prod(shares))


def _keep_undecided(probed: Sequence[Explanation]) -> list[Explanation]:
    """Return the hypotheses of a probe that the best of them does not rule out, if it fits."""
    if not probed or not probed[0].fit.fits:
        return list(probed)
    return [each for each in probed if not probed[0].fit.beats(each.fit)]


def _verdict(base: Fit, accepted: Sequence[Explanation], chance: float) -> Verdict:
    if accepted:
        return "explained" if chance <= MOST_CHANCE else "possible"
    return "reproduced" if base.fits else "none"


def _group_equal(accepted: Sequence[Explanation]) -> list[Explanation]:
    """Merge explanations that the evidence cannot tell apart."""
    groups: list[list[Explanation]] = []
    for each in accepted:
        same = next((group for group in groups if group[0].fit.equals(each.fit)), None)
        if same is None:
            groups.append([each])
        else:
            same.append(each)
    return [replace(group[0], equals=tuple(each.name for each in group[1:])) for group in groups]
