"""Adapters of a base: attached, trained, and saved with a card that names the base.

``adapter/`` has the layout of AdapterHub or PEFT, and ``base.json`` with the hash of the base's
weights. ``card.toml`` makes ``--model OUT`` the base with the adapter attached. The base is not
copied.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from foundation.errors import BenchError, did_you_mean, first_line
from foundation.files import replace_entries
from foundation.records import read_object, write_json
from retrievers.adapters import hub, peft
from retrievers.adapters.settings import AdapterSettings, import_library
from retrievers.models.card import (
    CARD_FILE,
    Card,
    CardAdapter,
    load_card,
    replace_fields,
    write_card,
)
from retrievers.models.read_adapter import (
    BASE,
    CONFIG,
    FOLDER,
    ROUTING,
    SETUP,
    adapter_folder,
    identify_adapter,
    read_composition,
)
from retrievers.models.read_checkpoint import Checkpoint
from retrievers.models.recipe import AdapterIdentity, AdapterKind
from retrievers.models.resolve import Model, resolve_model

# PEFT, AdapterHub, torch and safetensors raise nearly anything for what is damaged or unfit.
ATTACH_ERRORS = (Exception,)


def attach(network: Any, folder: Path, kind: AdapterKind) -> Any:
    """Attach an adapter to a network and activate it, without unpickling code.

    AdapterHub computes its adapters in the network's precision, PEFT in the adapter's own.

    Args:
        network: Hugging Face encoder of the base.
        folder: folder of the adapter.
        kind: library of the adapter. Routed adapters are attached one by one.

    Raises:
        BenchError: the library is not installed, or the adapter does not fit.
    """
    import_library("peft" if kind == "peft" else "adapters")
    try:
        attached = (peft if kind == "peft" else hub).attach(network, folder)
    except BenchError:
        raise
    except ATTACH_ERRORS as error:
        raise BenchError(
            f"the adapter {folder} cannot be attached: {first_line(error)}",
            "Check that it belongs to this base model and version of its library.",
        ) from error
    return attached.eval()


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
    write: Callable[[Path], None]

    def save(self, out: Path, card: Card) -> None:
        """Write adapter and ``card`` to ``out``, a folder for ``bench run ... --model OUT``.

        The card is written last.
        """
        self.save_files(out)
        self.save_card(out, card)

    def save_files(self, out: Path) -> None:
        """Write the adapter to ``out``, with the hash of the base's weights."""
        checkpoint = self.base.checkpoint
        with replace_entries(out) as unfinished:
            folder = unfinished / FOLDER
            folder.mkdir()
            self.write(folder)
            base = {"model": self.base.card.name, "weights_sha256": checkpoint.weights_sha256}
            write_json(folder / BASE, base)

    def save_card(self, out: Path, card: Card) -> None:
        """Write ``card`` to ``out``, with the location of the base and the adapter."""
        adapter, checkpoint = CardAdapter(path=FOLDER, kind=self.kind), self.base.checkpoint
        where = _base_location(self.base, checkpoint, out)
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

    check_method(settings)
    torch.manual_seed(seed)
    # Libraries write where the base lay into the adapter's configuration.
    network.config._name_or_path = base.card.name
    try:
        if settings.library == "peft":
            adapted = AdaptedNetwork(base, "peft", peft.insert_adapter(network, settings))
            _try_training_step(network)
            return adapted
        below = [find_adapter(Path(name), base, "adapterhub")[0] for name in settings.over]
        with hub.silence_adapterhub():
            write = hub.insert_adapter(network, settings, below)
    except BenchError:
        raise
    except ATTACH_ERRORS as error:
        first = first_line(error)
        raise BenchError(
            f"the adapter {settings.method} cannot be put into {base.card.name}: {first}",
            "Check adapter.options of the preset.",
        ) from error
    return AdaptedNetwork(base, "adapterhub", write)


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
    if not any((inner / name).is_file() for name in (CONFIG, SETUP, ROUTING)):
        raise BenchError(f"{folder} has no adapter", "Name the folder of a trained adapter")
    return inner, identify_adapter(inner, base.checkpoint, kind)


def _base_location(base: Model, checkpoint: Checkpoint, out: Path) -> dict[str, str]:
    """Return the fields of a card that locate the base: from its card, or a path to its folder."""
    card = base.card
    if card.package or checkpoint.revision:
        fields = ("checkpoint", "package", "weights_sha256")
        facts = {name: getattr(card, name) for name in fields}
        return {**facts, "revision": checkpoint.revision or card.revision}
    return {"checkpoint": os.path.relpath(checkpoint.root, out.resolve())}


def check_method(adapter: AdapterSettings) -> None:
    """Raise if the method or an option of ``adapter`` is unknown.

    Raises:
        BenchError: the name is unknown (with a suggestion), or the library is not installed.
    """
    library = peft if adapter.library == "peft" else hub
    names = library.list_methods()
    if adapter.method not in names:
        raise BenchError(
            f"{adapter.library} has no adapter method {adapter.method!r}",
            did_you_mean(adapter.method, names, f"there are: {', '.join(names)}"),
        )
    library.make_configuration(adapter.method, adapter.options)


@dataclass(frozen=True)
class AdapterSet:
    """Adapters of one base.

    Attributes:
        folders: folder of each adapter, as its library reads it.
        identities: identity of each adapter.
        cards: cards of the trainings; adapters from elsewhere have none.
    """

    folders: tuple[Path, ...]
    identities: tuple[AdapterIdentity, ...]
    cards: tuple[Card, ...]

    @property
    def kinds(self) -> set[AdapterKind]:
        """Libraries of the adapters."""
        return {identity.kind for identity in self.identities}

    def copy(self, out: Path, names: Sequence[str]) -> None:
        """Copy each adapter to the folder in ``out`` with its name in ``names``."""
        for name, folder in zip(names, self.folders, strict=True):
            shutil.copytree(folder, out / name)

    def card(self, place: int, title: str) -> Card:
        """Return the card at index ``place`` for all of the adapters, with ``title``.

        Raises:
            BenchError: no card states how vectors are made.
        """
        if not self.cards:
            raise _no_card_error()
        trained_on = tuple(dict.fromkeys(name for card in self.cards for name in card.trained_on))
        return replace_fields(self.cards[place], {"title": title, "trained_on": trained_on})


def find_adapters(base: Model, folders: Sequence[Path], *, composed: bool = False) -> AdapterSet:
    """Find several adapters of a base.

    Args:
        base: model that they must belong to.
        folders: folders of trainings or adapters.
        composed: accept compositions.

    Raises:
        BenchError: fewer than two, one belongs to another base, or one is composed.
    """
    if len(folders) < 2:
        raise BenchError("a single adapter cannot be composed", "name two or more")
    found = [find_adapter(folder, base, composed=composed) for folder in folders]
    inside, identities = zip(*found, strict=True)
    homes = [_training_folder(folder) for folder in folders]
    cards = tuple(load_card(home / CARD_FILE) for home in homes if home)
    return AdapterSet(inside, identities, cards)


def find_adapter_base(folders: Sequence[Path]) -> Model:
    """Return the model that adapters were trained on, from the first card among ``folders``.

    Raises:
        BenchError: a folder is missing, none has a card, or the base is missing.
    """
    for folder in folders:
        if not folder.expanduser().is_dir():
            raise BenchError(f"there is no adapter folder {folder}")
    home = next(filter(None, map(_training_folder, folders)), None)
    if home is None:
        raise _no_card_error()
    model = resolve_model(str(home))
    if model.adapter is None:
        raise BenchError(f"{home} is a complete model, not an adapter")
    known = (model.adapter / BASE).is_file()
    name = str(read_object(model.adapter / BASE).get("model")) if known else model.card.checkpoint
    recipe = msgspec.structs.replace(model.with_adapter(None).recipe, model=name)
    card = replace_fields(model.card, {"adapter": None, "name": name})
    return Model(card, recipe, model.document)


def _training_folder(folder: Path) -> Path | None:
    """Return the folder with the card of an adapter's training, up to three levels above."""
    here = folder.expanduser().resolve()
    return next((at for at in (here, *here.parents[:3]) if (at / CARD_FILE).is_file()), None)


def _no_card_error() -> BenchError:
    return BenchError(
        "none of these adapters has a card, which names the base and how vectors are made",
        "Name at least one folder written by `finetune` or `adapt --method adapter`.",
    )
