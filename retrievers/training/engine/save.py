"""The folder of a checkpoint: where a training finds the one it starts from, and what it writes.

``config.json``, ``model.safetensors`` and the tokenizer are a plain Hugging Face checkpoint;
``modules.json`` and what it names make it one of sentence-transformers; ``card.toml`` says how its
vectors are made and what it was trained on. ``heads/`` holds what training goes on with.
"""

from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from foundation.errors import BenchError, did_you_mean
from foundation.files import replace_entries
from foundation.records import decode_json, write_json
from retrievers.models.card import CARD_FILE, Card, card_names, load_card, write_card
from retrievers.models.checkpoint import HEADS, HEADS_FILE, Checkpoint, open_checkpoint
from retrievers.models.loading import silence_transformers
from retrievers.models.locate import locate_checkpoint
from retrievers.models.st_folder import ST_POOLING, find_transformer, is_st_folder, write_st_files

OBJECTIVE_FILE = "objective.json"
NEW_HEADS = "remove its folder to begin with new heads"


def save_checkpoint(model: Any, tokenizer: Any, out: Path, card: Card) -> None:
    """Write a checkpoint that ``python -m bench run ... --model OUT`` takes.

    The card is written last, so that a folder with a card is whole.

    Args:
        model: a Hugging Face encoder, without heads.
        card: its name and checkpoint are replaced by those of the folder.
    """
    save_files(model, tokenizer, out, card)
    write_card(card, out)


def save_files(model: Any, tokenizer: Any, out: Path, card: Card) -> None:
    """Write all files of a checkpoint but its card."""
    with replace_entries(out) as folder:
        with silence_transformers():  # version 5 draws a bar for each file
            model.save_pretrained(str(folder), safe_serialization=True)
        tokenizer.save_pretrained(str(folder))
        if not card.stages and card.pooling in ST_POOLING:
            write_st_files(folder, card, model.config.hidden_size)


def save_heads(module: nn.Module, encoder: nn.Module, out: Path, objective: Any) -> None:
    """Write what the module holds besides the encoder, apart, so that training can go on.

    Args:
        module: of an objective.
        encoder: the part of it that `save_checkpoint` saves.
        objective: whose settings are saved beside the weights.
    """
    tensors = {name: value.detach().cpu() for name, value in head_parameters(module, encoder)}
    with replace_entries(out / HEADS) as folder:
        save_file(tensors, str(folder / HEADS_FILE))
        write_json(folder / OBJECTIVE_FILE, objective)


def load_heads(module: nn.Module, encoder: nn.Module, folder: Path, objective: Any) -> bool:
    """Go on with the heads of a folder, where it has any.

    All of them are taken where all fit, as with the same objective, and when coCondenser goes on
    from Condenser; otherwise only the head for masked language modelling, which all have.

    Returns:
        True if any were taken.

    Raises:
        BenchError: the heads are damaged, or of the same objective and do not fit.
    """
    path = folder / HEADS / HEADS_FILE
    if not path.is_file():
        return False
    try:
        held = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise BenchError(f"{path} is damaged: {error}", NEW_HEADS) from error
    settings = folder / HEADS / OBJECTIVE_FILE
    saved = decode_json(settings.read_bytes(), dict[str, Any], settings, NEW_HEADS)
    parameters = head_parameters(module, encoder)
    all_fit = all(name in held and held[name].shape == own.shape for name, own in parameters)
    if saved != msgspec.to_builtins(objective) and not all_fit:
        parameters = [(name, own) for name, own in parameters if name.startswith("encoder.")]
    for name, parameter in parameters:
        if name not in held or held[name].shape != parameter.shape:
            raise BenchError(f"{path} does not fit: {name}", NEW_HEADS)
        parameter.data.copy_(held[name])
    return True


def head_parameters(module: nn.Module, encoder: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters of a module that are not the encoder's, by name; tied ones count as its own."""
    inside = {id(parameter) for parameter in encoder.parameters()}
    return [(name, own) for name, own in module.named_parameters() if id(own) not in inside]


def find_checkpoint(model: str) -> tuple[Checkpoint, tuple[str, ...]]:
    """Files of a checkpoint by card, folder or Hub id, and what it was trained on.

    Raises:
        BenchError: there is none, or its files are damaged.
    """
    folder = Path(model).expanduser()
    if model in card_names() or model.endswith(".toml"):
        card = load_card(model)
        _check_plain(card)
        base = Path(model).resolve().parent if model.endswith(".toml") else Path.cwd()
        return _open_folder(_locate_checkpoint(card, base)), card.trained_on
    if folder.is_dir():
        own = load_card(folder / CARD_FILE) if (folder / CARD_FILE).is_file() else None
        if own is not None:
            _check_plain(own)
        return _open_folder(folder.resolve()), own.trained_on if own else ()
    if model.count("/") != 1 or model.startswith((".", "~", "/")):
        raise BenchError(
            f"there is no card and no folder {model!r} to start from",
            f"{did_you_mean(model, card_names())} see `python -m bench list models`".strip(),
        )
    return _open_folder(locate_checkpoint(model, "main", base=Path.cwd())), ()


def _check_plain(card: Card) -> None:
    """Refuse to start from a part of a model as if it were all."""
    parts = {"an adapter": card.adapter, "a second encoder": card.query_checkpoint}
    for part, there in parts.items():
        if there:
            raise BenchError(
                f"{card.name} has {part}, which would be left out", "start from a plain encoder"
            )


def _locate_checkpoint(card: Card, base: Path) -> Path:
    if not card.checkpoint or card.missing:
        raise BenchError(
            f"{card.name} has no checkpoint to start from", card.missing or "name another model"
        )
    return locate_checkpoint(
        card.checkpoint, card.revision, base=base, package=card.package, sha=card.weights_sha256
    )


def _open_folder(root: Path) -> Checkpoint:
    inner = find_transformer(root) if is_st_folder(root) else ""
    return open_checkpoint(root, inner)
