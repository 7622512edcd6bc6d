"""Published scores: what others say of their systems, as data with its source.

Cards state the scores of their own checkpoints. Here are further systems, a TOML file for each
publication. A claim is never measured, and never part of a mean; a mean that was printed is a
claim of its own, on the suite that it is the mean of.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from bench.boards.records import Claim
from foundation.errors import BenchError, did_you_mean
from foundation.records import Record, read_toml
from retrievers.models.card import Card

CARDS, ALL = "cards", "all"
PUBLISHED = Path(__file__).parent / "published"


class PublishedSystem(Record, kw_only=True):
    """One system of a publication.

    Attributes:
        scores: in 0..1, by measure and by collection or suite.
        source: instead of the publication's.
        second_hand: copied from somebody else's publication.
        note: what a reader must know of these scores.
    """

    name: str
    scores: dict[str, dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]]]
    source: str = ""
    second_hand: bool = False
    note: str = ""


class Publication(Record, kw_only=True):
    """A table that somebody published.

    Attributes:
        source: its address.
        second_hand: whether all of it was read in a copy.
    """

    title: str
    source: str
    systems: tuple[PublishedSystem, ...]
    second_hand: bool = False


def read_publications(folder: Path = PUBLISHED) -> dict[str, Publication]:
    """By name, which is that of the file, sorted.

    Raises:
        BenchError: a file is not TOML, or has an unknown key or a value of the wrong type.
    """
    return {path.stem: read_toml(path, Publication) for path in sorted(folder.glob("*.toml"))}


def collect_claims(
    cards: Mapping[str, Card], models: Collection[str], names: Sequence[str] | None
) -> list[Claim]:
    """Claims to show: of the models that were measured, and of other systems as far as named.

    Args:
        names: of publications, and ``cards`` for models that were not measured; empty or ``all``
            for all, None for no other systems.

    Raises:
        BenchError: there is no such publication.
    """
    wanted = names or ()
    every = not wanted or ALL in wanted
    own = [claim for claim in _of_cards(cards) if every or CARDS in wanted or claim.model in models]
    published = read_publications() if names is not None else {}
    _check_names(wanted, published)
    shown = (publication for name, publication in published.items() if every or name in wanted)
    return own + [claim for publication in shown for claim in list_claims(publication)]


def _check_names(names: Sequence[str], publications: Mapping[str, Publication]) -> None:
    known = [ALL, CARDS, *publications]
    for name in names:
        if name not in known:
            raise BenchError(
                f"no published scores are called {name!r}",
                did_you_mean(name, known, f"there are {', '.join(known)}"),
            )


def _of_cards(cards: Mapping[str, Card]) -> Iterable[Claim]:
    """Claims of cards about their own checkpoints."""
    for card in cards.values():
        for expected in card.expected:
            yield Claim(
                card.name, expected.dataset, expected.measure, expected.value, expected.source
            )


def list_claims(publication: Publication) -> Iterable[Claim]:
    """Every score of a publication."""
    for system in publication.systems:
        second_hand = system.second_hand or publication.second_hand
        source = system.source or publication.source
        for measure, scores in system.scores.items():
            for dataset, value in scores.items():
                yield Claim(
                    system.name,
                    dataset,
                    measure,
                    value,
                    source,
                    publication.title,
                    second_hand,
                    system.note,
                )
