"""Means over suites: only when all members are there; a user's own suite may weigh them."""

from collections.abc import Collection, Iterable, Mapping
from statistics import fmean

import msgspec

from datasets_cfg.catalogue import is_suite, suite_for


class SuiteMean(msgspec.Struct, frozen=True):
    """Mean of one measure of one model over a suite.

    Attributes:
        value: None unless every member has a score.
        members: how many members the mean is over; a suite among them counts once.
        missing: members without a score.
        weighted: True where members do not count the same.
        zero_shot: mean over the members that the model was not trained on; None where a score
            is missing or all members are in-domain.
        zero_shot_members: how many those are.
    """

    suite: str
    measure: str
    value: float | None
    members: int
    missing: tuple[str, ...]
    zero_shot: float | None
    zero_shot_members: int
    weighted: bool = False


def suite_mean(
    suite: str, measure: str, values: Mapping[str, float], in_domain: Collection[str] = ()
) -> SuiteMean:
    """The mean of a suite.

    Args:
        values: score by collection.
        in_domain: collections that the model was trained on; a suite with one of them is too.
    """
    shares = member_weights(suite)
    scores = {member: member_score(member, values) for member in shares}
    missing = tuple(member for member, value in scores.items() if value is None)
    known = {member: value for member, value in scores.items() if value is not None}
    unseen = [member for member in known if not _touches(member, in_domain)]

    def mean(members: Collection[str]) -> float | None:
        if missing or not members:
            return None
        return fmean([known[member] for member in members], [shares[member] for member in members])

    return SuiteMean(
        suite=suite,
        measure=measure,
        value=mean(known),
        members=len(shares),
        missing=missing,
        zero_shot=mean(unseen),
        zero_shot_members=len(unseen),
        weighted=len(set(shares.values())) > 1,
    )


def member_score(member: str, values: Mapping[str, float]) -> float | None:
    """Score of a collection, or mean of a suite among the members; None if not complete."""
    if not is_suite(member):
        return values.get(member)
    return suite_mean(member, "", values).value


def member_weights(suite: str) -> dict[str, float]:
    """Weight of each member in the mean of a suite, as declared: 1 for each where none is."""
    declared = suite_for(suite)
    weights = declared.weights or (1.0,) * len(declared.members)
    return dict(zip(declared.members, weights, strict=True))


def suite_weights(suite: str) -> dict[str, float]:
    """Weight of each collection in the mean of a suite; a suite among the members counts once."""
    shares = member_weights(suite)
    total = sum(shares.values())
    weights: dict[str, float] = {}
    for member, share in shares.items():
        inner = suite_weights(member) if is_suite(member) else {member: 1.0}
        for name, weight in inner.items():
            weights[name] = weights.get(name, 0.0) + weight * share / total
    return weights


def mean_weights(typed: Iterable[str]) -> dict[str, float]:
    """Weights of the collections in the mean of what was typed, in whatever order.

    A member of a suite weighs as much as a collection that was typed, on the average where members
    have weights; a suite among the members counts once, also where its collections were typed too.
    """
    weights: dict[str, float] = {}
    for name in typed:
        if is_suite(name):
            count = len(suite_for(name).members)
            inner = {member: count * weight for member, weight in suite_weights(name).items()}
        else:
            inner = {name: 1.0}
        weights |= {
            member: min(weight, weights.get(member, weight)) for member, weight in inner.items()
        }
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def with_inner(names: Iterable[str]) -> list[str]:
    """The suites among the names, each after the suites that it contains; no duplicates."""
    ordered: dict[str, None] = {}
    for name in names:
        if is_suite(name):
            ordered |= dict.fromkeys([*with_inner(suite_for(name).members), name])
    return list(ordered)


def _touches(member: str, in_domain: Collection[str]) -> bool:
    if not is_suite(member):
        return member in in_domain
    return any(_touches(inner, in_domain) for inner in suite_for(member).members)
