"""An adapter of a base: trained, and saved with a card that names the base.

``adapter/`` has the layout of AdapterHub or PEFT, and ``base.json`` with the hash of the base's
weights. ``card.toml`` makes ``--model OUT`` the base with the adapter attached. The base is not
copied.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foundation.errors import BenchError, first_line
from foundation.files import replace_entries
from foundation.records import write_json
from retrievers.adapters.libraries import (
    ATTACH_ERRORS,
    AdapterSettings,
    Write,
    insert_adapter,
    make_configuration,
    silence_adapterhub,
)
from retrievers.models.card import (
    CARD_FILE,
    Card,
    CardAdapter,
    load_card,
    replace_fields,
    write_card,
)
from retrievers.models.read_checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_FOLDER,
    BASE,
    ROUTING,
    SETUP,
    adapter_folder,
    identify_adapter,
    read_composition,
)
from retrievers.models.recipe import AdapterIdentity, AdapterKind
from retrievers.models.resolve import Model


@dataclass(frozen=True, eq=False)
class AdaptedNetwork:
    """A network with a trainable adapter.

    Attributes:
        base: model whose weights are frozen.
        kind: library of the adapter.
        write: function that writes the adapter to a folder.
    """

    base: Model
    kind: AdapterKind
    write: Write

    def save(self, out: Path, card: Card) -> None:
        """Write adapter and ``card`` to ``out``, a folder for ``bench run ... --model OUT``.

        The card is written last.
        """
        self.save_files(out)
        self.save_card(out, card)

    def save_files(self, out: Path) -> None:
        """Write the adapter to ``out``, with the hash of the base's weights."""
        with replace_entries(out) as unfinished:
            folder = unfinished / ADAPTER_FOLDER
            folder.mkdir()
            self.write(folder)
            hashed = self.base.checkpoint.weights_sha256
            base = {"model": self.base.card.name, "weights_sha256": hashed}
            write_json(folder / BASE, base)

    def save_card(self, out: Path, card: Card) -> None:
        """Write ``card`` to ``out``, with the adapter and the location of the base."""
        base, checkpoint = self.base.card, self.base.checkpoint
        where: dict[str, Any] = {"checkpoint": os.path.relpath(checkpoint.root, out.resolve())}
        if base.package or checkpoint.revision:
            fields = ("checkpoint", "package", "weights_sha256")
            where = {name: getattr(base, name) for name in fields}
            where["revision"] = checkpoint.revision or base.revision
        adapter = CardAdapter(path=ADAPTER_FOLDER, kind=self.kind)
        write_card(replace_fields(card, {"adapter": adapter, **where}), out, where["checkpoint"])


def add_adapter(network: Any, settings: AdapterSettings, base: Model, seed: int) -> AdaptedNetwork:
    """Freeze a network and add a new, trainable adapter.

    Args:
        network: Hugging Face encoder of ``base``, changed in place.
        settings: method and options of the adapter.
        base: model of the network.
        seed: seed of the adapter's weights.

    Raises:
        BenchError: a method or option is unknown, an adapter below belongs to another base, or one
            does not fit the network.
    """
    import torch

    configuration = make_configuration(settings)
    torch.manual_seed(seed)
    # Libraries write where the base lay into the adapter's configuration.
    network.config._name_or_path = base.card.name
    try:
        below = [find_adapter(Path(name), base, "adapterhub")[0] for name in settings.over]
        with silence_adapterhub():
            write = insert_adapter(network, settings, configuration, below)
        if settings.library == "peft":
            _try_training_step(network)
    except BenchError:
        raise
    except ATTACH_ERRORS as error:
        first = first_line(error)
        raise BenchError(
            f"the adapter {settings.method} cannot be put into {base.card.name}: {first}",
            "Check adapter.options of the preset.",
        ) from error
    return AdaptedNetwork(base, settings.library, write)


def _try_training_step(network: Any) -> None:
    """Run a network forward and backward on two tokens: some methods of PEFT fail only there.

    Weights, gradients, mode and the random state of the network are not changed.
    """
    import torch

    was_training, device = network.training, next(network.parameters()).device
    ids = torch.zeros((1, 2), dtype=torch.long, device=device)
    network.eval()
    with torch.random.fork_rng(devices=[]):
        states = network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        states.sum().backward()
    network.zero_grad(set_to_none=True)
    network.train(was_training)


def find_adapter(
    folder: Path,
    base: Model,
    kind: AdapterKind | Literal["auto"] = "auto",
    *,
    composed: bool = False,
) -> tuple[Path, AdapterIdentity]:
    """Find an adapter of a base, in its own folder or in the one that a card names.

    Args:
        folder: folder of the adapter or of its training.
        base: model that it must belong to.
        kind: expected library.
        composed: accept a composition of AdapterHub's adapters.

    Raises:
        BenchError: there is no adapter, it belongs to another base or library, or it is composed.
    """
    where = folder.expanduser().resolve()
    has_card = (where / CARD_FILE).is_file()
    stated = load_card(where / CARD_FILE).adapter if has_card else CardAdapter(path=".")
    if stated is None:
        raise BenchError(f"{folder} is a complete model, not an adapter")
    inner = adapter_folder(stated, where)
    if (inner / SETUP).is_file() and not composed:
        names = ", ".join(str(inner / name) for name in read_composition(inner).names)
        raise BenchError(f"{folder} is a composition of adapters", f"Name its parts: {names}")
    if not any((inner / name).is_file() for name in (ADAPTER_CONFIG, SETUP, ROUTING)):
        raise BenchError(f"{folder} has no adapter", "Name the folder of a trained adapter")
    return inner, identify_adapter(inner, base.checkpoint, kind)
