"""Trained adapters that are put together: their folders, what they state, and their one base."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from foundation.errors import BenchError
from foundation.records import read_object
from retrievers.adapters.identify import BASE
from retrievers.adapters.train import find_adapter
from retrievers.models.card import CARD_FILE, Card, load_card, replace_fields
from retrievers.models.model import Model, resolve_model


@dataclass(frozen=True)
class Parts:
    """Adapters of one base.

    Attributes:
        folders: as their library reads them.
        cards: of the trainings that they are from; an adapter of others has none.
    """

    folders: tuple[Path, ...]
    cards: tuple[Card, ...]

    def card(self, place: int, title: str) -> Card:
        """The card of one of them, for all of them.

        Raises:
            BenchError: no card says how vectors are made.
        """
        if not self.cards:
            raise _no_card()
        trained_on = tuple(dict.fromkeys(name for card in self.cards for name in card.trained_on))
        return replace_fields(self.cards[place], {"title": title, "trained_on": trained_on})


def parts_of(base: Model, folders: Sequence[Path], *, composed: bool = False) -> Parts:
    """Adapters by what was named: the folder of a training, or of an adapter.

    Args:
        composed: each may be composed of others.

    Raises:
        BenchError: fewer than two, one of another base, or one that is composed.
    """
    if len(folders) < 2:
        raise BenchError("a single adapter cannot be composed", "name two or more")
    inside = tuple(find_adapter(folder, base, "auto", composed=composed) for folder in folders)
    homes = [_home(folder) for folder in folders]
    return Parts(inside, tuple(load_card(home / CARD_FILE) for home in homes if home))


def base_of(folders: Sequence[Path]) -> Model:
    """The model that adapters were trained on, as the first card among them says.

    Raises:
        BenchError: there is no such folder, none has a card, or the base is not there.
    """
    for folder in folders:
        if not folder.expanduser().is_dir():
            raise BenchError(f"there is no adapter folder {folder}")
    home = next(filter(None, map(_home, folders)), None)
    if home is None:
        raise _no_card()
    model = resolve_model(str(home))
    if model.adapter is None:
        raise BenchError(f"{home} holds no adapter, but a whole model")
    known = (model.adapter / BASE).is_file()
    name = str(read_object(model.adapter / BASE).get("model")) if known else model.card.checkpoint
    plain = model.with_adapter(None) if model.routing else model
    recipe = msgspec.structs.replace(plain.recipe, adapter=None, model=name)
    card = replace_fields(model.card, {"adapter": None, "name": name})
    return Model(card, recipe, model.document)


def _home(folder: Path) -> Path | None:
    """The training that an adapter lies in: itself, or above ``adapter`` or what is in that."""
    here = folder.expanduser().resolve()
    return next((at for at in (here, *here.parents[:3]) if (at / CARD_FILE).is_file()), None)


def _no_card() -> BenchError:
    return BenchError(
        "none of these adapters has a card that names its base and says how vectors are made",
        "name at least one folder that `finetune` or `adapt --method adapter` wrote",
    )
