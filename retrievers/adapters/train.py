"""The folder of a trained adapter: what its library reads, and the card that names the base.

``adapter/`` has the layout of AdapterHub or PEFT, with ``base.json``, which says of which weights
it is the adapter; ``card.toml`` makes ``--model OUT`` the base with the adapter attached. The base
is not copied.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foundation.errors import BenchError, first_line
from foundation.files import replacing_in
from foundation.records import write_json
from retrievers.adapters import hub, peft
from retrievers.adapters.attach import ATTACH_ERRORS, quiet_adapterhub
from retrievers.adapters.composition import SETUP, read_setup
from retrievers.adapters.forward import correct_forward
from retrievers.adapters.identify import (
    BASE,
    CONFIG,
    FOLDER,
    adapter_folder,
    identify_adapter,
)
from retrievers.adapters.methods import check_method
from retrievers.adapters.settings import Adapter
from retrievers.models.card import (
    CARD_FILE,
    Card,
    CardAdapter,
    load_card,
    replace_fields,
    write_card,
)
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.model import Model
from retrievers.models.recipe import AdapterKind


@dataclass(frozen=True, eq=False)
class AdaptedNetwork:
    """A network with an adapter that is trained.

    Attributes:
        base: whose weights are frozen.
        write: writes the adapter to a folder.
    """

    base: Model
    kind: AdapterKind
    write: Callable[[Path], None]

    def save(self, out: Path, card: Card) -> None:
        """Write what ``python -m bench run ... --model OUT`` takes; the card comes last."""
        self.save_files(out)
        self.save_card(out, card)

    def save_files(self, out: Path) -> None:
        """Write the adapter, and of which weights it is the adapter."""
        checkpoint = checkpoint_of(self.base)
        with replacing_in(out) as unfinished:
            folder = unfinished / FOLDER
            folder.mkdir()
            self.write(folder)
            base = {"model": self.base.card.name, "weights_sha256": checkpoint.weights_sha256}
            write_json(folder / BASE, base)

    def save_card(self, out: Path, card: Card) -> None:
        """Write the card, which names the base and the adapter."""
        adapter, checkpoint = CardAdapter(path=FOLDER, kind=self.kind), checkpoint_of(self.base)
        where = _where(self.base, checkpoint, out)
        write_card(replace_fields(card, {"adapter": adapter, **where}), out, where["checkpoint"])


def add_adapter(network: Any, settings: Adapter, base: Model, seed: int) -> AdaptedNetwork:
    """Freeze a network and put a new adapter into it, which alone is trained.

    Args:
        network: the Hugging Face encoder of ``base``; changed in place.
        seed: of the adapter's weights.

    Raises:
        BenchError: an unknown method or option, an adapter below that is of another base, or
            one that does not fit the network.
    """
    import torch

    check_method(settings)
    torch.manual_seed(seed)
    # Libraries write where the base lay into the adapter's configuration.
    network.config._name_or_path = base.card.name
    try:
        if settings.library == "peft":
            return AdaptedNetwork(base, "peft", peft.put_into(network, settings))
        below = [find_adapter(Path(folder), base) for folder in settings.over]
        with quiet_adapterhub():
            write = hub.put_into(network, settings, below)
    except ATTACH_ERRORS as error:
        first = first_line(error)
        raise BenchError(
            f"the adapter {settings.method} cannot be put into {base.card.name}: {first}",
            "see adapter.options of the preset",
        ) from error
    correct_forward(network)
    return AdaptedNetwork(base, "adapterhub", write)


def find_adapter(
    folder: Path,
    base: Model,
    kind: Literal["auto", "adapterhub"] = "adapterhub",
    *,
    composed: bool = False,
) -> Path:
    """An adapter for the same base, from its folder or from that of its card.

    Args:
        composed: it may be one that AdapterHub composed of others.

    Raises:
        BenchError: there is none, it is of another base or kind, or it is composed.
    """
    where = folder.expanduser().resolve()
    adapter = CardAdapter(path=str(where), kind=kind)
    if (where / CARD_FILE).is_file():
        named = load_card(where / CARD_FILE).adapter
        if named is None:
            raise BenchError(f"{folder} holds no adapter, but a whole model")
        adapter = CardAdapter(path=str(where / named.path), kind=kind)
    inner = adapter_folder(adapter, where)
    if (inner / SETUP).is_file() and not composed:
        names = ", ".join(str(inner / name) for name in read_setup(inner).names)
        raise BenchError(f"{folder} holds a composition", f"name what it is of: {names}")
    if not ((inner / CONFIG).is_file() or (inner / SETUP).is_file()):
        raise BenchError(f"{folder} holds no adapter", "name the folder of a trained adapter")
    identify_adapter(inner, adapter, checkpoint_of(base))
    return inner


def checkpoint_of(base: Model) -> Checkpoint:
    """The files of a base.

    Raises:
        BenchError: it has none.
    """
    if base.document is None:
        raise BenchError(f"{base.card.name} has no checkpoint to train")
    return base.document


def _where(base: Model, checkpoint: Checkpoint, out: Path) -> dict[str, str]:
    """Fields of a card that say where the base is: its own card's, or the way to its folder."""
    card = base.card
    if card.package or checkpoint.revision:
        fields = ("checkpoint", "package", "weights_sha256")
        own = {name: getattr(card, name) for name in fields}
        return {**own, "revision": checkpoint.revision or card.revision}
    return {"checkpoint": os.path.relpath(checkpoint.root, out.resolve())}
