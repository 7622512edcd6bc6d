"""Where training starts: the weights and the tokenizer of a checkpoint, or a new model.

A checkpoint's weights are read without executing anything that arrives with them, and each of the
encoder's must be there. The head may be missing (all-MiniLM-L6-v2 has none): then it is new.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foundation.errors import BenchError, first_line
from foundation.suggestions import did_you_mean
from retrievers.models.card import Card, card_names, load_card
from retrievers.models.checkpoint import Checkpoint, locate, open_checkpoint, position_limit
from retrievers.models.loading import LOAD_ERRORS, load_tokenizer, read_weights
from retrievers.models.lookup import CARD_FILE
from retrievers.models.st_folder import find_transformer, is_st_folder
from retrievers.training.objectives.masked_lm import HEADS, MaskedLM
from retrievers.training.pretrain.preset import Scratch, Start

# What a checkpoint of an encoder need not hold, in files of Hugging Face models.
OF_THE_HEAD = re.compile(rf"^({'|'.join(sorted(set(HEADS.values())))})\.|position_ids")


@dataclass(frozen=True)
class Started:
    """What training begins with.

    Attributes:
        folder: of the checkpoint; None for a new model.
        trained_on: collections that the checkpoint had seen.
    """

    encoder: MaskedLM
    tokenizer: Any
    folder: Path | None
    trained_on: tuple[str, ...]

    @property
    def max_tokens(self) -> int:
        """Longest input in tokens."""
        limit = position_limit(self.encoder.config.to_dict())
        if limit is None:
            raise BenchError("the model states no longest input")
        return limit


def open_start(start: Start, seed: int) -> Started:
    """Load the checkpoint, or make a new model; ``seed`` decides what is random.

    Raises:
        BenchError: there is no such checkpoint, it is damaged, or it is of an architecture
            that cannot be trained here.
    """
    torch.manual_seed(seed)
    if start.scratch is not None:
        return _new(start.scratch)
    checkpoint, trained_on = find_checkpoint(start.model)
    model = _load(checkpoint)
    return Started(MaskedLM(model), load_tokenizer(checkpoint), checkpoint.root, trained_on)


def find_checkpoint(model: str) -> tuple[Checkpoint, tuple[str, ...]]:
    """Files of a checkpoint by card, folder or Hub id, and what it was trained on.

    Raises:
        BenchError: there is none, or its files are damaged.
    """
    folder = Path(model).expanduser()
    if model in card_names() or model.endswith(".toml"):
        card = load_card(model)
        _check_whole(card)
        base = Path(model).resolve().parent if model.endswith(".toml") else Path.cwd()
        return _open(_folder_of(card, base)), card.trained_on
    if folder.is_dir():
        own = load_card(folder / CARD_FILE) if (folder / CARD_FILE).is_file() else None
        if own is not None:
            _check_whole(own)
        return _open(folder.resolve()), own.trained_on if own else ()
    if model.count("/") != 1 or model.startswith((".", "~", "/")):
        raise BenchError(
            f"there is no card and no folder {model!r} to start from",
            f"{did_you_mean(model, card_names())} see `python -m bench list models`".strip(),
        )
    return _open(locate(model, "main", base=Path.cwd())), ()


def _check_whole(card: Card) -> None:
    """Refuse to start from a part of a model as if it were all."""
    parts = {"an adapter": card.adapter, "a second encoder": card.query_checkpoint}
    for part, there in parts.items():
        if there:
            raise BenchError(
                f"{card.name} has {part}, which would be left out", "start from a plain encoder"
            )


def _folder_of(card: Card, base: Path) -> Path:
    if not card.checkpoint or card.missing:
        raise BenchError(
            f"{card.name} has no checkpoint to start from", card.missing or "name another model"
        )
    return locate(
        card.checkpoint, card.revision, base=base, package=card.package, sha=card.weights_sha256
    )


def _open(root: Path) -> Checkpoint:
    inner = find_transformer(root) if is_st_folder(root) else ""
    return open_checkpoint(root, inner)


def _new(scratch: Scratch) -> Started:
    from transformers import BertConfig, BertForMaskedLM

    checkpoint, _ = find_checkpoint(scratch.tokenizer)
    tokenizer = load_tokenizer(checkpoint)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=scratch.width,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        intermediate_size=scratch.intermediate,
        max_position_embeddings=scratch.positions,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.model_max_length = scratch.positions
    return Started(MaskedLM(BertForMaskedLM(config)), tokenizer, None, ())


def _load(checkpoint: Checkpoint) -> Any:
    from transformers import AutoModelForMaskedLM

    try:
        model, report = read_weights(AutoModelForMaskedLM, checkpoint, torch.float32)
    except LOAD_ERRORS as error:
        raise BenchError(
            f"the weights in {checkpoint.folder} cannot be trained: {first_line(error)}",
            f"start from a checkpoint of one of these types: {', '.join(HEADS)}",
        ) from error
    _check_missing(checkpoint.folder, report["missing_keys"])
    return model


def _check_missing(folder: Path, keys: Iterable[str]) -> None:
    missing = sorted(key for key in keys if not OF_THE_HEAD.search(key))
    if missing:
        raise BenchError(
            f"{folder} lacks {len(missing)} weights of its encoder: {', '.join(missing[:5])}",
            "is config.json the one of these weights?",
        )
