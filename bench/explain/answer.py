"""The answer of a search for causes, as reports and results of checks hold it."""

from typing import Literal

import msgspec

Verdict = Literal["reproduced", "explained", "possible", "none"]


class Observation(msgspec.Struct, frozen=True):
    """A difference that evidence shows without a search.

    Attributes:
        name: the difference in words.
        apply: the setting that does the same here, or mends it there.
    """

    name: str
    apply: str


class Explanation(msgspec.Struct, frozen=True):
    """Deviations that explain the evidence together.

    Attributes:
        deviations: one, or a pair.
        share: part of the texts, queries or numbers that agree, from 0 to 1.
        precision: precision that the typical error is like; "" for scores.
        apply: card line or command for each deviation.
        cost: change of the main measure, on the sample of queries or on all; None if unknown.
        equals: other explanations that the evidence cannot tell from this one.
        detail: a remark; may be empty.
    """

    deviations: tuple[str, ...]
    share: float
    precision: str
    apply: tuple[str, ...]
    cost: float | None = None
    equals: tuple[str, ...] = ()
    detail: str = ""

    @property
    def name(self) -> str:
        """The deviations in words."""
        return " and ".join(self.deviations)


class Answer(msgspec.Struct, frozen=True):
    """Answer to the question why evidence differs from a model's own set-up.

    Attributes:
        evidence: kinds of evidence.
        verdict: ``reproduced`` by the set-up as it is, ``explained``, ``possible`` (agrees, but
            unrelated numbers would, too) or ``none``.
        share, precision: of the set-up as it is, as in `Explanation`.
        explanations: that fit, the best first.
        closest: the best that does not fit; None if none is closer than the set-up as it is.
        seen: differences that the evidence shows without a search.
        chance: explanations that are expected to agree by coincidence.
        singles, pairs: how many were tried.
        encoded: texts that went through a network.
        measure: in which ``cost`` is given.
        sampled: whether ``cost`` is of a sample of queries and documents.
    """

    model: str
    collections: tuple[str, ...]
    evidence: tuple[str, ...]
    verdict: Verdict
    share: float
    precision: str
    explanations: tuple[Explanation, ...]
    closest: Explanation | None
    seen: tuple[Observation, ...]
    chance: float
    singles: int
    pairs: int
    encoded: int
    measure: str
    sampled: bool
