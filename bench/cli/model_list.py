"""Models in groups by what it takes to use them, from cards and the names of files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foundation.errors import BenchError
from retrievers.models.card import Card, all_cards
from retrievers.models.locate import find_local

Group = Literal["ready", "download", "pretrained", "unpublished"]
HEADINGS: dict[Group, str] = {
    "ready": "Ready on this machine",
    "download": "Needs a download, which `run` or `fetch --model NAME` makes",
    "pretrained": "Pre-trained only: fine-tune it before it retrieves",
    "unpublished": "Not published: `show NAME` says why, and what would make it",
}


@dataclass(frozen=True)
class ModelLine:
    """A model as a list shows it.

    Attributes:
        parameters: about how many; 0 where the card does not state it.
        dim: length of its vectors; 0 where the card does not state it, or there are none.
        licence: followed by ``?`` where it was not read in a first-party source.
        title: for a table; ``about`` has the warnings, too.
    """

    name: str
    group: Group
    parameters: int
    dim: int
    licence: str
    title: str
    about: str


def model_lines(
    groups: Sequence[Group] = (), match: str = "", licence: str = ""
) -> list[ModelLine]:
    """Models that pass every filter, by group and name.

    Args:
        groups: those to list; empty for all.
        match: part of a name, title, checkpoint or citation, whatever its letter case.
        licence: part of a licence, whatever its letter case.

    Raises:
        BenchError: a licence that no card has.
    """
    cards = all_cards().values()
    licences = sorted({card.licence for card in cards} - {""})
    if licence and not any(licence.lower() in known.lower() for known in licences):
        raise BenchError(f"no model has the licence {licence!r}", f"one of {', '.join(licences)}")
    lines = [
        _line(card)
        for card in cards
        if licence.lower() in card.licence.lower() and match.lower() in _searched(card)
    ]
    order = list(HEADINGS)
    kept = [line for line in lines if not groups or line.group in groups]
    return sorted(kept, key=lambda line: (order.index(line.group), line.name))


def group_of(card: Card) -> Group:
    """The group of a model, by what it takes to use it.

    A pre-trained checkpoint stays in its group when it is on this machine.
    """
    if card.missing:
        return "unpublished"
    if card.pretrained_only:
        return "pretrained"
    towers = [(card.checkpoint, card.revision), (card.query_checkpoint, card.query_revision)]
    needed = [tower for tower in towers if tower[0]]
    return "ready" if all(find_local(*tower, card.package) for tower in needed) else "download"


def short_count(number: int) -> str:
    """A number of parameters in three characters or so: ``23M``, ``1.2B``; "" for 0."""
    if number >= 1e9:
        return f"{number / 1e9:.1f}B"
    return f"{number / 1e6:.0f}M" if number else ""


def _line(card: Card) -> ModelLine:
    doubt = "?" if "licence" in card.unverified else ""
    return ModelLine(
        name=card.name,
        group=group_of(card),
        parameters=card.parameters,
        dim=card.dim,
        licence=card.licence + doubt,
        title=card.title,
        about=_about(card),
    )


def _about(card: Card) -> str:
    """The title with everything that whoever chooses the model must know."""
    if card.missing:
        return f"{card.title} — not available: {card.missing}"
    notes = [card.title]
    if card.unverified:
        notes.append(f"unverified: {', '.join(card.unverified)}")
    if card.warning:
        notes.append(card.warning)
    return " — ".join(notes)


def _searched(card: Card) -> str:
    return " ".join((card.name, card.title, card.checkpoint, card.citation)).lower()
