"""Checkpoint folders: the files that a training reads at its start and writes at its end.

``config.json``, ``model.safetensors`` and the tokenizer form a plain Hugging Face checkpoint.
``modules.json`` and the files that it names make it a sentence-transformers folder. ``card.toml``
states how vectors are made and which collections the model was trained on. ``heads/`` holds weights
that are only needed to continue pre-training.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from foundation.errors import BenchError
from foundation.files import replace_entries
from foundation.records import decode_json, write_json
from retrievers.models.card import BRANCH, Card, write_card
from retrievers.models.loading import silence_transformers
from retrievers.models.locate import locate_checkpoint, locate_model
from retrievers.models.read_checkpoint import HEADS, HEADS_FILE, Checkpoint, read_checkpoint
from retrievers.models.read_settings import LEGACY_POOLING, ST_POOLING

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
            _write_st_files(folder, card, model.config.hidden_size)


def _write_st_files(folder: Path, card: Card, width: int) -> None:
    """Write ``modules.json`` and its modules: pooling, lengths, normalisation and prompts.

    Args:
        folder: folder of the transformer.
        card: card without stages, with a pooling in `ST_POOLING`.
        width: dimension of the encoder's vectors.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if card.normalize else [])]
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    modes = {key: mode == ST_POOLING[card.pooling] for key, mode in LEGACY_POOLING.items()}
    uses = {
        "prompts": {"query": card.prompts.query, "document": card.prompts.document},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if card.similarity == "cos" else "dot",
    }
    lengths = {"max_seq_length": card.max_tokens, "do_lower_case": card.lower_case}
    _write_settings(folder / "modules.json", modules)
    _write_settings(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes}
    )
    if card.normalize:
        (folder / "2_Normalize").mkdir()
    _write_settings(folder / "sentence_bert_config.json", lengths)
    _write_settings(folder / "config_sentence_transformers.json", uses)


def _write_settings(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


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
        BenchError: If the checkpoint is missing or damaged, or is one of several parts of a model.
    """
    place = locate_model(model)
    card = place.card
    if card is None:
        folder = place.folder or locate_checkpoint(model, BRANCH, base=place.base)
        return read_checkpoint(folder), ()
    for part, there in {
        "an adapter": card.adapter,
        "a second encoder": card.query_checkpoint,
    }.items():
        if there:
            raise BenchError(
                f"{card.name} has {part}, which would be lost", "Start from a plain encoder."
            )
    if not card.checkpoint or card.missing:
        raise BenchError(
            f"{card.name} has no checkpoint to start from", card.missing or "Use another model."
        )
    folder = locate_checkpoint(
        *(card.checkpoint, card.revision),
        base=place.base,
        package=card.package,
        sha=card.weights_sha256,
    )
    return read_checkpoint(folder), card.trained_on
