"""First looks at parts of collections, and the ledger of how they related to full checks.

Each look is a file of the ledger (`bench.gate.ledger`), and another one beside it when its full
result exists.

History of the format: 1, the first.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from bench.gate.ledger import key_of, read_records, write_once
from bench.gate.subset import Subset
from bench.results.location import Place
from bench.results.result import Protocol, Stored
from foundation.records import Record

LEDGER, LOOK_FILE, FULL_FILE = "first-looks", "look.json", "full.json"
FORMAT = 1


class Look(Record, kw_only=True):
    """Candidate minus baseline on a part of one collection, and on all of it once known.

    Attributes:
        candidate_fingerprint, baseline_fingerprint: of the recipes.
        protocol: of the whole collection, as `digest` writes it.
        documents, of: of the part, and of the collection.
        low, high: 95 % interval of the difference on the part.
        full: difference on the whole collection.
    """

    format: int = FORMAT
    time: str
    candidate: str
    baseline: str
    candidate_fingerprint: str
    baseline_fingerprint: str
    collection: str
    protocol: str
    measure: str
    documents: int
    of: int
    seed: int
    difference: float
    low: float | None
    high: float | None
    full: float | None = None

    @property
    def key(self) -> str:
        """16 hexadecimal digits: looks with the same key are the same look."""
        fields = (
            self.candidate_fingerprint,
            self.baseline_fingerprint,
            self.collection,
            self.protocol,
            self.measure,
            self.documents,
            self.seed,
        )
        return key_of(*fields)


class Relation(Record):
    """Agreement of looks with their full results.

    Attributes:
        looks: how many have a full result.
        bias: mean of look minus full; above 0 the looks favoured the candidate.
        lowest, highest: of look minus full.
        same_sign: looks that had the sign of the full difference.
        covered: looks whose interval held the full difference.
    """

    looks: int
    bias: float
    lowest: float
    highest: float
    same_sign: int
    covered: int


class Quick(Record):
    """Subsets and budget of a first look, and how earlier looks turned out.

    Attributes:
        budget_s: seconds that it was sized for.
        past: looks of the ledger with a full result, oldest first.
        relation: over them; None where there are none.
    """

    budget_s: float
    subsets: tuple[Subset, ...]
    past: tuple[Look, ...]
    relation: Relation | None


def digest(protocol: Protocol) -> str:
    """A protocol in 16 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(protocol)).hexdigest()[:16]


def remember(results: Place, looks: Iterable[Look]) -> None:
    """Write looks down; one that is there already stays as it is."""
    for look in looks:
        write_once(results / LEDGER / look.key / LOOK_FILE, look)


def complete(results: Place, find: Callable[[], Sequence[Stored]]) -> list[Look]:
    """The looks that have a full result, oldest first; those that got one since are written down.

    Args:
        find: reads the stored results; called only where a look waits for one.
    """
    ledger = results / LEDGER
    done = {look.key: look for look in read_records(ledger, FULL_FILE, Look)}
    waiting = [look for look in read_records(ledger, LOOK_FILE, Look) if look.key not in done]
    known = _by_evaluation(find()) if waiting else {}
    for look in waiting:
        if completed := _with_full(look, known):
            write_once(results / LEDGER / look.key / FULL_FILE, completed)
            done[look.key] = completed
    return sorted(done.values(), key=lambda look: look.time)


def relation(past: Sequence[Look]) -> Relation | None:
    """Compare looks at real parts with their full results; None where there are none."""
    parts = [look for look in past if look.documents < look.of]
    pairs = [(look, look.full) for look in parts if look.full is not None]
    if not pairs:
        return None
    errors = [look.difference - full for look, full in pairs]
    return Relation(
        looks=len(pairs),
        bias=fmean(errors),
        lowest=min(errors),
        highest=max(errors),
        same_sign=sum((look.difference > 0) == (full > 0) for look, full in pairs),
        covered=sum(
            look.low is not None and look.high is not None and look.low <= full <= look.high
            for look, full in pairs
        ),
    )


Evaluation = tuple[str, str, str]  # fingerprint, collection, digest of the protocol


def _by_evaluation(known: Iterable[Stored]) -> dict[Evaluation, Mapping[str, float]]:
    """Means of exact search by what was evaluated."""
    return {
        (
            stored.result.fingerprint,
            stored.collection,
            digest(stored.result.protocol),
        ): stored.result.measures
        for stored in known
        if stored.result.index in ("flat", "")
    }


def _with_full(look: Look, known: Mapping[Evaluation, Mapping[str, float]]) -> Look | None:
    means = [
        known.get((fingerprint, look.collection, look.protocol), {}).get(look.measure)
        for fingerprint in (look.candidate_fingerprint, look.baseline_fingerprint)
    ]
    if means[0] is None or means[1] is None:
        return None
    return msgspec.structs.replace(look, full=means[0] - means[1])
