"""The use case ``explain``: which difference of set-up explains the evidence.

The search tries single deviations, then pairs, and ranks those that explain the evidence.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
from attrs import evolve
from tqdm import tqdm

from bench.evaluation.retriever import Retriever
from bench.explain.evidence import CEILING, Fit, SetupEvidence, combine_fits
from bench.explain.question import Question
from bench.explain.setup import (
    Answer,
    Deviation,
    EvaluationSetup,
    Explanation,
    Observation,
    Verdict,
    deviations,
    differing_files,
    forward_key,
)
from bench.requests.deciding import ExplainRequest
from bench.requests.fields import ModelFields
from bench.runner.workspace import Workspace, load_models, open_workspace
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.encoders.tokens import load_tokenizer
from retrievers.models.locate import is_card
from retrievers.models.read_checkpoint import TOKENIZER as TOKENIZER_FILES
from retrievers.models.resolve import Model

FULL_SINGLES = 10  # hypotheses that the probe leaves over, evaluated on all items
PROBED_PAIRS = 160
FULL_PAIRS = 6
PAIRS_AFTER_A_FIT = 12
MOST_CHANCE = 0.05  # expected coincidences above which an agreement names no cause
SHOWN = 5  # explanations whose cost is measured


def explain(request: ExplainRequest) -> Answer:
    """Find the differences of set-up that explain the evidence.

    Raises:
        BenchError: wrong input, or no evidence.
    """
    if request.rescore is not None:
        raise BenchError("candidates scored again are not explained", "Leave out --rescore.")
    print(f"loading {request.model}", file=sys.stderr)
    workspace = open_workspace(request)
    (model,) = load_models(workspace, (request.model,), request)
    datasets = workspace.datasets(request.on)
    names = [dataset.name for dataset in datasets]  # of a folder, not its path
    typed = dict(zip(names, workspace.expand_names(request.on), strict=True))

    def open_split(name: str, split: str) -> Dataset:
        return workspace.dataset(typed[name], split)

    other = _load_other(workspace, request)
    question = Question(model, datasets, open_split, workspace.device, other)
    answer = answer_question(question, _evidence(request, question))
    if other is None:
        return answer
    seen = *_compare_files(model.model, other.model), *answer.seen
    return msgspec.structs.replace(answer, seen=seen)


def _compare_files(model: Model, other: Model) -> Iterator[Observation]:
    """Yield the files of another checkpoint that differ, and tokens with other ids."""
    name, files = other.card.name, differing_files(model, other)
    same = "" if "weights" in files else "; the weights are byte-identical"
    what = f"files of {name} that differ: {', '.join(files) or 'none'}{same}"
    yield Observation(what, f"diff -r {model.checkpoint.root} {other.checkpoint.root}")
    if set(files) & set(TOKENIZER_FILES):
        ours, theirs = (load_tokenizer(each.checkpoint).get_vocab() for each in (model, other))
        if moved := [each for each in {**ours, **theirs} if ours.get(each) != theirs.get(each)]:
            ids = f"{moved[0]!r}, {theirs.get(moved[0])} there and {ours.get(moved[0])} here"
            what = f"{len(moved):,} tokens have other ids in {name}, such as {ids}"
            yield Observation(what, "copy the tokenizer from one folder to the other")


def _load_other(workspace: Workspace, request: ExplainRequest) -> Retriever | None:
    """Load the other checkpoint as its folder states, or else as the model is used."""
    if request.checkpoint is None:
        return None
    use = ModelFields(like=request.like, dtype=request.dtype, trust_code=request.trust_code)
    try:
        (other,) = load_models(workspace, (request.checkpoint,), use)
    except BenchError:
        if use.like is not None or not is_card(request.model):
            raise
        use = evolve(use, like=request.model)
        (other,) = load_models(workspace, (request.checkpoint,), use)
    return other


def _evidence(request: ExplainRequest, question: Question) -> list[SetupEvidence]:
    readers: list[tuple[Callable[[Any], SetupEvidence], object]] = [
        (question.of_vectors, request.vectors),
        (question.of_run, request.run_file),
        (question.of_query_scores, request.per_query),
        (question.of_published, request.published),
    ]
    evidence = [read(given) for read, given in readers if given]
    if not evidence and question.other:
        encoder = question.other.require_encoder()
        evidence.append(question.of_encoder(encoder, question.other.name))
    if not evidence:
        raise BenchError(
            "there is no evidence to explain",
            "Give --published, --per-query, --run-file, --vectors or --checkpoint.",
        )
    return evidence


def answer_question(
    question: Question, evidence: Sequence[SetupEvidence], most_seconds: float = math.inf
) -> Answer:
    """Return the answer that all evidence together supports.

    No pair is tried after ``most_seconds``.
    """
    return _DeviationSearch(question, evidence, time.monotonic() + most_seconds).answer()


@dataclass(frozen=True)
class _Hypothesis:
    """Deviations that are tried together, with the set-up that they lead to and its fit."""

    deviations: tuple[Deviation, ...]
    setup: EvaluationSetup
    fit: Fit


@dataclass(frozen=True)
class _DeviationSearch:
    """Search over the deviations that are possible for the model of a question."""

    question: Question
    evidence: Sequence[SetupEvidence]
    deadline: float

    def answer(self) -> Answer:
        question, facts = self.question, self.question.dataset.facts
        models, lengths = question.passes, sorted(set(question.lengths))
        singles = deviations(models.model, question.setup, models.other, facts, lengths)
        base = self._fit(question.setup, False)
        if base.is_exact:  # nothing can be closer
            singles = []
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
        verdict: Verdict = "reproduced" if base.fits else "none"
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
            measure=facts.main_measure,
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
    """Return hypotheses that fit, better than the set-up as it is."""
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
