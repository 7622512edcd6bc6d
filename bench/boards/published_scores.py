"""Published scores of other systems, with their sources.

Cards state the published scores of their own checkpoints. Further systems are listed here, in a
TOML file for each publication. A published score is never mixed with measured ones or averaged. A
published mean is a claim of its own, on the suite that it averages.
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
        name: name in the publication.
        scores: scores from 0 to 1, by measure and by collection or suite.
        source: used instead of the publication's source.
        second_hand: whether the scores were copied from somebody else's publication.
        note: remark that readers of these scores need.
    """

    name: str
    scores: dict[str, dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]]]
    source: str = ""
    second_hand: bool = False
    note: str = ""


class Publication(Record, kw_only=True):
    """Published table of scores.

    Attributes:
        title: title of the publication.
        source: its address.
        systems: systems with scores.
        second_hand: whether all scores were read in a copy.
    """

    title: str
    source: str
    systems: tuple[PublishedSystem, ...]
    second_hand: bool = False


def read_publications(folder: Path = PUBLISHED) -> dict[str, Publication]:
    """Read all publications in ``folder``, by file name.

    Raises:
        BenchError: a file is not TOML, or has an unknown key or a value of the wrong type.
    """
    return {path.stem: read_toml(path, Publication) for path in sorted(folder.glob("*.toml"))}


def collect_claims(
    cards: Mapping[str, Card], models: Collection[str], names: Sequence[str] | None
) -> list[Claim]:
    """Collect published scores of measured models, and of other systems if chosen.

    Args:
        cards: model cards by name.
        models: names of measured models.
        names: publications to include, and ``cards`` for cards of models that were not measured;
            empty or ``all`` for all, None for measured models only.

    Raises:
        BenchError: a publication is unknown.
    """
    wanted = names or ()
    every = not wanted or ALL in wanted
    claims = [one for one in _of_cards(cards) if every or CARDS in wanted or one.model in models]
    published = read_publications() if names is not None else {}
    _check_names(wanted, published)
    shown = [one for name, one in published.items() if every or name in wanted]
    return claims + [claim for publication in shown for claim in list_claims(publication)]


def _check_names(names: Sequence[str], publications: Mapping[str, Publication]) -> None:
    known = [ALL, CARDS, *publications]
    for name in names:
        if name not in known:
            raise BenchError(
                f"no published scores are called {name!r}",
                did_you_mean(name, known, f"Choose from {', '.join(known)}."),
            )


def _of_cards(cards: Mapping[str, Card]) -> Iterable[Claim]:
    """Yield published scores of cards' own checkpoints."""
    for card in cards.values():
        for expected in card.expected:
            yield Claim(
                card.name, expected.dataset, expected.measure, expected.value, expected.source
            )


def list_claims(publication: Publication) -> Iterable[Claim]:
    """Yield every score of ``publication``."""
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
