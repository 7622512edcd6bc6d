"""Scores that somebody stated, kept beside measured results and never among them.

A claim has no values of queries and no protocol that could be checked, so nothing is tested with
it. It lies in a file of its own, ``claim.json``, which only those read who show claims. The name
of its folder comes from its content: the same claim is kept once, another one beside it.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bench.results.location import Place, files_below, read_all, replacing
from bench.results.result import place
from foundation.errors import BenchError
from foundation.records import Record, decode_json
from retrievers.models.card import Card, Expected

CLAIM_FILE = "claim.json"
SCHEMA = 1


class Claimed(Record, kw_only=True):
    """Scores of one model on one collection or suite.

    Attributes:
        measures: means by canonical name, from 0 to 1, as they were stated.
        source: who stated them.
    """

    schema: int = SCHEMA
    model: str
    collection: str
    measures: dict[str, float]
    source: str

    def __post_init__(self) -> None:
        for name, value in self.measures.items():
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise ValueError(f"{name} is {value}, and not from 0 to 1")

    @property
    def content(self) -> bytes:
        """The file: equal claims have equal bytes."""
        encoded = msgspec.json.encode(self, order="deterministic")
        return msgspec.json.format(encoded, indent=1)


def keep(claims: Iterable[Claimed], out: Place) -> list[Place]:
    """Write each claim that is not there yet; returns the files of all.

    Raises:
        BenchError: a name that leads out of ``out``, or the place cannot be written.
    """
    files = [(_file(claim, out), claim.content) for claim in claims]
    for file, content in files:
        if not file.exists():
            with replacing(file) as opened:
                opened.write(content)
    return [file for file, _ in files]


def _file(claim: Claimed, out: Place) -> Place:
    digest = hashlib.sha256(claim.content).hexdigest()[:12]
    return place(out, claim.collection, claim.model) / digest / CLAIM_FILE


def find_claims(root: Place) -> list[Claimed]:
    """Claims in a folder and all below it, in the order of their paths.

    Raises:
        BenchError: one is damaged or of another schema.
    """
    files = files_below(root, CLAIM_FILE)
    try:
        contents = read_all(files)
    except OSError as error:
        raise BenchError(f"cannot read the claim {error.filename}: {error.strerror}") from error
    return [_parsed(content, path) for content, path in zip(contents, files, strict=True)]


def _parsed(content: bytes, path: Place) -> Claimed:
    claim = decode_json(content, Claimed, path, "import it again, or remove it")
    if claim.schema != SCHEMA:
        raise BenchError(f"{path} has schema {claim.schema}, this version reads {SCHEMA}")
    return claim


def cards_with(cards: Mapping[str, Card], claims: Sequence[Claimed]) -> dict[str, Card]:
    """Cards that also expect what is claimed; a card's own score stays the one that counts.

    A model without a card gets one that only holds its claims.
    """
    extended = dict(cards)
    for claim in claims:
        known = extended.get(claim.model) or Card(
            name=claim.model, title="", missing="only its scores are known"
        )
        stated = tuple(
            Expected(
                dataset=claim.collection,
                measure=name,
                value=value,
                source=claim.source or "imported",  # never the card's own
            )
            for name, value in claim.measures.items()
        )
        extended[claim.model] = msgspec.structs.replace(known, expected=(*stated, *known.expected))
    return extended
