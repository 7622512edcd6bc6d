"""Checkpoint folders: the files that a training reads at its start and writes at its end.

``config.json``, ``model.safetensors`` and the tokenizer form a plain Hugging Face checkpoint.
``modules.json`` and the files that it names make it a sentence-transformers folder. ``card.toml``
states how vectors are made and which collections the model was trained on. ``heads/`` holds weights
that are only needed to continue pre-training.
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
NEW_HEADS = "Remove its folder to begin with new heads."


def save_checkpoint(model: Any, tokenizer: Any, out: Path, card: Card) -> None:
    """Write a checkpoint that ``python -m bench run ... --model OUT`` accepts.

    The card is written last, so a folder with a card is complete.

    Args:
        model: Hugging Face encoder without heads.
        tokenizer: tokenizer of the encoder.
        out: folder to write.
        card: card of the result. Its name and checkpoint are replaced by the folder's.
    """
    save_files(model, tokenizer, out, card)
    write_card(card, out)


def save_files(model: Any, tokenizer: Any, out: Path, card: Card) -> None:
    """Write all files of a checkpoint except its card.

    Args:
        model: Hugging Face encoder without heads.
        tokenizer: tokenizer of the encoder.
        out: folder to write.
        card: card of the result, which decides whether sentence-transformers files are written.
    """
    with replace_entries(out) as folder:
        with silence_transformers():  # version 5 shows a progress bar for each file
            model.save_pretrained(str(folder), safe_serialization=True)
        tokenizer.save_pretrained(str(folder))
        if not card.stages and card.pooling in ST_POOLING:
            write_st_files(folder, card, model.config.hidden_size)


def save_heads(module: nn.Module, encoder: nn.Module, out: Path, objective: Any) -> None:
    """Write the weights outside the encoder to a separate file, so that pre-training can continue.

    Args:
        module: module of an objective.
        encoder: part of the module that `save_checkpoint` writes.
        out: folder of the checkpoint.
        objective: settings of the objective, which are saved with the weights.
    """
    tensors = {name: value.detach().cpu() for name, value in head_parameters(module, encoder)}
    with replace_entries(out / HEADS) as folder:
        save_file(tensors, str(folder / HEADS_FILE))
        write_json(folder / OBJECTIVE_FILE, objective)


def load_heads(module: nn.Module, encoder: nn.Module, folder: Path, objective: Any) -> bool:
    """Load the heads of a checkpoint if it has any.

    All heads are loaded if all fit, for example for the same objective or from Condenser to
    coCondenser. Otherwise only the language-model head is loaded, which all objectives have.

    Args:
        module: module of an objective, whose heads are replaced.
        encoder: part of the module that is not a head.
        folder: folder of the checkpoint.
        objective: settings of the objective.

    Returns:
        True if heads were loaded.

    Raises:
        BenchError: If the heads are damaged, or belong to the same objective and do not fit.
    """
    path = folder / HEADS / HEADS_FILE
    if not path.is_file():
        return False
    try:
        heads = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise BenchError(f"{path} is damaged: {error}", NEW_HEADS) from error
    settings = folder / HEADS / OBJECTIVE_FILE
    saved = decode_json(settings.read_bytes(), dict[str, Any], settings, NEW_HEADS)
    parameters = head_parameters(module, encoder)
    all_fit = all(name in heads and heads[name].shape == value.shape for name, value in parameters)
    if saved != msgspec.to_builtins(objective) and not all_fit:
        parameters = [(name, value) for name, value in parameters if name.startswith("encoder.")]
    for name, parameter in parameters:
        if name not in heads or heads[name].shape != parameter.shape:
            raise BenchError(f"{path} does not fit this model: {name}", NEW_HEADS)
        parameter.data.copy_(heads[name])
    return True


def head_parameters(module: nn.Module, encoder: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of ``module`` outside ``encoder``, by name.

    Parameters that are tied to the encoder are not among them.
    """
    inside = {id(parameter) for parameter in encoder.parameters()}
    return [(name, value) for name, value in module.named_parameters() if id(value) not in inside]


def find_checkpoint(model: str) -> tuple[Checkpoint, tuple[str, ...]]:
    """Find a checkpoint, and the collections that it was trained on.

    Args:
        model: name of a card, path of a folder, or Hub id.

    Raises:
        BenchError: If the checkpoint is missing or damaged.
    """
    folder = Path(model).expanduser()
    if model in card_names() or model.endswith(".toml"):
        card = load_card(model)
        _check_plain(card)
        base = Path(model).resolve().parent if model.endswith(".toml") else Path.cwd()
        return _open_folder(_locate_checkpoint(card, base)), card.trained_on
    if folder.is_dir():
        folder_card = load_card(folder / CARD_FILE) if (folder / CARD_FILE).is_file() else None
        if folder_card is not None:
            _check_plain(folder_card)
        return _open_folder(folder.resolve()), folder_card.trained_on if folder_card else ()
    if model.count("/") != 1 or model.startswith((".", "~", "/")):
        raise BenchError(
            f"no card and no folder is called {model!r}",
            f"{did_you_mean(model, card_names())} Run `python -m bench list models`.".strip(),
        )
    return _open_folder(locate_checkpoint(model, "main", base=Path.cwd())), ()


def _check_plain(card: Card) -> None:
    """Raise if the card describes more than one encoder, since the other parts would be lost."""
    parts = {"an adapter": card.adapter, "a second encoder": card.query_checkpoint}
    for part, there in parts.items():
        if there:
            raise BenchError(
                f"{card.name} has {part}, which would be lost", "Start from a plain encoder."
            )


def _locate_checkpoint(card: Card, base: Path) -> Path:
    if not card.checkpoint or card.missing:
        raise BenchError(
            f"{card.name} has no checkpoint to start from", card.missing or "Use another model."
        )
    return locate_checkpoint(
        card.checkpoint, card.revision, base=base, package=card.package, sha=card.weights_sha256
    )


def _open_folder(root: Path) -> Checkpoint:
    inner = find_transformer(root) if is_st_folder(root) else ""
    return open_checkpoint(root, inner)
