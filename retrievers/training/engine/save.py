"""The folder of a trained checkpoint: what Hugging Face, sentence-transformers and `bench` read.

``config.json``, ``model.safetensors`` and the tokenizer are a plain Hugging Face checkpoint;
``modules.json`` and what it names make it one of sentence-transformers; ``card.toml`` says how its
vectors are made and what it was trained on. ``heads/`` holds what training goes on with.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from foundation.atomic import replacing_in
from foundation.errors import BenchError
from foundation.records import decode_json, write_json
from retrievers.models.card import Card
from retrievers.models.card_file import write_card

HEADS = "heads"
HEADS_FILE = "model.safetensors"
OBJECTIVE_FILE = "objective.json"
ST_POOLING = {"cls": "cls", "mean": "mean", "last": "lasttoken"}
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
    with replacing_in(out) as folder:
        model.save_pretrained(str(folder), safe_serialization=True)
        tokenizer.save_pretrained(str(folder))
        if not card.stages:
            _write_st_files(folder, card, model.config.hidden_size)


def save_heads(module: nn.Module, encoder: nn.Module, out: Path, objective: Any) -> None:
    """Write what the module holds besides the encoder, apart, so that training can go on.

    Args:
        module: of an objective.
        encoder: the part of it that `save_checkpoint` saves.
        objective: whose settings are saved beside the weights.
    """
    tensors = {name: value.detach().cpu() for name, value in own_parameters(module, encoder)}
    with replacing_in(out / HEADS) as folder:
        save_file(tensors, str(folder / HEADS_FILE))
        write_json(folder / OBJECTIVE_FILE, objective)


def load_heads(module: nn.Module, encoder: nn.Module, folder: Path, objective: Any) -> bool:
    """Go on with the heads of a folder, where it has any.

    All of them are taken where all fit, as with the same objective, and when coCondenser goes on
    from Condenser; otherwise only the head for masked language modelling, which all have.

    Returns:
        True where any were taken.

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
    parameters = own_parameters(module, encoder)
    all_fit = all(name in held and held[name].shape == own.shape for name, own in parameters)
    if saved != msgspec.to_builtins(objective) and not all_fit:
        parameters = [(name, own) for name, own in parameters if name.startswith("encoder.")]
    for name, parameter in parameters:
        if name not in held or held[name].shape != parameter.shape:
            raise BenchError(f"{path} does not fit: {name}", NEW_HEADS)
        parameter.data.copy_(held[name])
    return True


def own_parameters(module: nn.Module, encoder: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters of a module that are not the encoder's, by name; tied ones count as its own."""
    inside = {id(parameter) for parameter in encoder.parameters()}
    return [(name, own) for name, own in module.named_parameters() if id(own) not in inside]


def _write_st_files(folder: Path, card: Card, width: int) -> None:
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
    modes = {
        f"pooling_mode_{mode}": ST_POOLING[card.pooling] == short
        for short, mode in (
            ("cls", "cls_token"),
            ("mean", "mean_tokens"),
            ("lasttoken", "lasttoken"),
        )
    }
    settings = {
        "prompts": {"query": card.prompts.query, "document": card.prompts.document},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if card.similarity == "cos" else "dot",
    }
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes})
    if card.normalize:
        (folder / "2_Normalize").mkdir()
    length = max(card.max_query_tokens, card.max_document_tokens)
    lengths = {"max_seq_length": length, "do_lower_case": False}
    _write_json(folder / "sentence_bert_config.json", lengths)
    _write_json(folder / "config_sentence_transformers.json", settings)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
