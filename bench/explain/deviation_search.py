"""The search of `explain` over deviations from a configuration: single ones, then pairs.

Those that explain the evidence are ranked.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from tqdm import tqdm

from bench.explain.evidence import CEILING, Fit, SetupEvidence, combine_fits
from bench.explain.question import Question
from bench.explain.setup import (
    Answer,
    AnswerVerdict,
    Deviation,
    EvaluationSetup,
    Explanation,
    forward_key,
)
from foundation.errors import BenchError

FULL_SINGLES = 10  # hypotheses that the probe leaves over, evaluated on all items
PROBED_PAIRS = 160
FULL_PAIRS = 6
PAIRS_AFTER_A_FIT = 12
MOST_CHANCE = 0.05  # expected coincidences above which an agreement names no cause
SHOWN = 5  # explanations whose cost is measured


def answer_question(
    question: Question,
    evidence: Sequence[SetupEvidence],
    most_seconds: float = math.inf,
    stated: str = "float32",
) -> Answer:
    """Return the answer that all evidence together supports.

    No pair is tried after ``most_seconds``, and no deviation if everything agrees within the
    rounding of the ``stated`` precision, beyond which none can be told.
    """
    deadline = time.monotonic() + most_seconds
    return _DeviationSearch(question, evidence, deadline, stated).answer()


@dataclass(frozen=True)
class _Hypothesis:
    """Deviations that are tried together, with the configuration that they lead to and its fit."""

    deviations: tuple[Deviation, ...]
    setup: EvaluationSetup
    fit: Fit


@dataclass(frozen=True)
class _DeviationSearch:
    """Search over the deviations that are possible for the model of a question."""

    question: Question
    evidence: Sequence[SetupEvidence]
    deadline: float
    stated: str

    def answer(self) -> Answer:
        question = self.question
        base = self._fit(question.setup, False)
        singles = () if base.is_within(self.stated) else question.deviations.values()
        probed = self._fit_all([(deviation,) for deviation in singles], True)
        tried = self._fit_all(_keep_undecided(probed, FULL_SINGLES), False)
        accepted = _accept(tried, base)
        pairs: list[_Hypothesis] = []
        if accepted[0].fit.is_rough if accepted else not base.fits:
            pairs = self._fit_all(self._rank_pairs(probed), True)
            tried += self._fit_all(_keep_undecided(pairs, FULL_PAIRS), False)
            tried.sort(key=lambda each: -each.fit.likelihood)
            accepted = _accept(tried, base)
        chance = _expect_coincidences([*probed, *pairs])
        verdict: AnswerVerdict = "reproduced" if base.fits else "none"
        if accepted:
            verdict = "explained" if chance <= MOST_CHANCE else "possible"
        groups = enumerate(_group_equal(accepted))
        explanations = [self._explanation(group, place < SHOWN) for place, group in groups]
        closest = None if accepted else next(iter(tried), None)
        notes = [*question.notes, *(note for each in self.evidence for note in each.notes)]
        if verdict == "none":
            notes += [note for each in self.evidence for note in each.observe(question.setup)]
        return Answer(
            model=question.model.name,
            collections=tuple(dataset.name for dataset in question.datasets),
            evidence=tuple(each.name for each in self.evidence),
            verdict=verdict,
            share=base.share,
            precision=base.precision,
            explanations=tuple(explanations),
            closest=self._explanation([closest]) if closest and closest.fit.beats(base) else None,
            seen=tuple(notes),
            chance=chance,
            singles=len(probed),
            pairs=len(pairs),
            encoded=question.passes.encoded,
            measure=question.dataset.metadata.main_measure,
            sampled=not self._needs_collection,
        )

    def _explanation(self, group: Sequence[_Hypothesis], with_cost: bool = False) -> Explanation:
        """Return the record of hypotheses that the evidence cannot tell apart, the best first."""
        best, *others = group
        details = filter(None, (each.detail(best.setup) for each in self.evidence))
        return Explanation(
            deviations=tuple(each.name for each in best.deviations),
            share=best.fit.share,
            precision=best.fit.precision,
            apply=tuple(each.apply for each in best.deviations),
            cost=self.question.cost(best.setup, self._needs_collection) if with_cost else None,
            equals=tuple(" and ".join(one.name for one in each.deviations) for each in others),
            detail="; ".join(details),
        )

    @property
    def _needs_collection(self) -> bool:
        return any(each.needs_collection for each in self.evidence)

    def _fit(self, setup: EvaluationSetup, probe: bool) -> Fit:
        return combine_fits([each.fit(setup, probe) for each in self.evidence])

    def _fit_all(self, all_: Sequence[tuple[Deviation, ...]], probe: bool) -> list[_Hypothesis]:
        """Return hypotheses with their fit, to the probe or to all, the most likely first.

        Those that are impossible, such as an absent split, are left out.
        """
        hypotheses = []
        since_exact = 0
        for together in tqdm(all_, "comparing hypotheses", unit=""):
            setup = self.question.setup
            for deviation in together:
                setup = deviation.on(setup)
            try:
                fit = self._fit(setup, probe)
            except BenchError as error:
                tqdm.write(f"left out a hypothesis: {error}", sys.stderr)
                continue
            hypotheses.append(_Hypothesis(together, setup, fit))
            # Pairs come best first: soon after one that fits, the rest are farther off.
            is_exact = fit.fits and not fit.is_rough
            since_exact += bool(since_exact) or (is_exact and len(together) > 1)
            is_late = len(together) > 1 and time.monotonic() > self.deadline
            if since_exact > PAIRS_AFTER_A_FIT or is_late:
                break
        return sorted(hypotheses, key=lambda each: -each.fit.likelihood)

    def _rank_pairs(self, probed: Sequence[_Hypothesis]) -> Sequence[tuple[Deviation, ...]]:
        """Return pairs that change different fields, those first whose halves come closest.

        A deviation that changes nothing of the evidence is in no pair. If documents of the whole
        collection are encoded, at most one of a pair may need new forward passes of them.
        """
        unchanged = self.question.setup
        base = self._fit(unchanged, True)
        # If the dimension differs, nothing but a cut changes the fit: then all are combined.
        is_cut = bool((base.errors >= CEILING).all())
        singles = [
            each for each in probed if is_cut or not np.array_equal(each.fit.errors, base.errors)
        ]

        def can_combine(pair: tuple[_Hypothesis, _Hypothesis]) -> bool:
            (a,), (b,) = (each.deviations for each in pair)
            is_slow = all(forward_key(each.setup) != forward_key(unchanged) for each in pair)
            return not set(a.changes) & set(b.changes) and not (self._needs_collection and is_slow)

        def distance(pair: tuple[_Hypothesis, _Hypothesis]) -> float:
            nearer, farther = sorted(float(each.fit.logarithms.mean()) for each in pair)
            return 2 * nearer + farther

        pairs = sorted(filter(can_combine, combinations(singles, 2)), key=distance)
        return [(*a.deviations, *b.deviations) for a, b in pairs[:PROBED_PAIRS]]


def _accept(tried: Sequence[_Hypothesis], base: Fit) -> list[_Hypothesis]:
    """Return hypotheses that fit, better than the configuration as it is."""
    good = [
        each
        for each in tried
        if each.fit.fits
        and each.fit.beats(base)
        and not (base.fits and each.deviations[0].is_rounding)
        # Arithmetic in 16 bits is no cause, and comes close to weights in 16 bits.
        and not (base.fits and each.setup.stored and each.fit.precision != "float32")
    ]
    # Another that fits is listed too, unless the best is closer on most items.
    return [each for each in good if not good[0].fit.beats(each.fit)]


def _expect_coincidences(tried: Sequence[_Hypothesis]) -> float:
    """Return the expected number of hypotheses that agree with unrelated scores by chance.

    For each number: the density of hypotheses around it, within a hundred tolerances, times the
    tolerance. Vectors, runs and scores by query have too many items to agree by chance.
    """
    errors = [each.fit.errors for each in tried if each.fit.level is None]
    most = max(map(len, errors), default=0)
    if not 0 < most <= 12:
        return 0.0
    near = np.array([each for each in errors if len(each) == most]) <= 100
    return float(len(errors) * np.prod(np.maximum(near.mean(axis=0) / 100, 1e-4)))


def _keep_undecided(probed: Sequence[_Hypothesis], most: int) -> list[tuple[Deviation, ...]]:
    """Return the hypotheses of a probe that the best of them does not rule out, if it fits."""
    decided = bool(probed) and probed[0].fit.fits
    kept = [each for each in probed if not (decided and probed[0].fit.beats(each.fit))]
    return [each.deviations for each in kept[:most]]


def _group_equal(accepted: Sequence[_Hypothesis]) -> list[list[_Hypothesis]]:
    """Merge hypotheses that the evidence cannot tell apart."""
    groups: list[list[_Hypothesis]] = []
    for each in accepted:
        for group in groups:
            if group[0].fit.equals(each.fit):
                group.append(each)
                break
        else:
            groups.append([each])
    return groups
