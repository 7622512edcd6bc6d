"""The record of an answer: what explains the evidence, how well, and what it costs."""

import msgspec

from bench.explain.search import Verdict


class Observation(msgspec.Struct, frozen=True):
    """A difference that can be seen in a file of evidence itself.

    Attributes:
        name: the difference in words.
        apply: what does the same here, or mends it there.
    """

    name: str
    apply: str


class ExplanationRow(msgspec.Struct, frozen=True):
    """One explanation.

    Attributes:
        deviations: one, or a pair.
        share: part of the texts, queries or numbers that agree, from 0 to 1.
        precision: precision that the typical error is like; "" for scores.
        apply: card line or command for each deviation.
        cost: change of the main measure, on the sample of queries or on all; None if unknown.
        equals: other explanations that the evidence cannot tell from this one.
        detail: what else there is to say.
    """

    deviations: tuple[str, ...]
    share: float
    precision: str
    apply: tuple[str, ...]
    cost: float | None = None
    equals: tuple[str, ...] = ()
    detail: str = ""


class Answer(msgspec.Struct, frozen=True):
    """Answer to the question why evidence differs from a model's own set-up.

    Attributes:
        evidence: kinds of evidence.
        verdict: ``reproduced`` by the set-up as it is, ``explained``, ``possible`` (agrees, but
            unrelated numbers would, too) or ``none``.
        share, precision: of the set-up as it is, as in `ExplanationRow`.
        explanations: that fit, the best first.
        closest: the best that does not fit; None if none is closer than the set-up as it is.
        seen: differences that the files show themselves.
        chance: explanations that are expected to agree by coincidence.
        singles, pairs: how many were tried.
        encoded: texts that went through a network.
        measure: in which ``cost`` is given.
    """

    model: str
    collections: tuple[str, ...]
    evidence: tuple[str, ...]
    verdict: Verdict
    share: float
    precision: str
    explanations: tuple[ExplanationRow, ...]
    closest: ExplanationRow | None
    seen: tuple[Observation, ...]
    chance: float
    singles: int
    pairs: int
    encoded: int
    measure: str
