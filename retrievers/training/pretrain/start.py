"""Where training starts: the weights and the tokenizer of a checkpoint, or a new model.

A checkpoint's weights are read without executing anything that arrives with them, and each of the
encoder's must be there. The head may be missing (all-MiniLM-L6-v2 has none): then it is new.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foundation.errors import BenchError, first_line
from retrievers.models.checkpoint import Checkpoint, position_limit
from retrievers.models.language_head import HEAD_OF
from retrievers.models.loading import LOAD_ERRORS, load_tokenizer, read_weights
from retrievers.training.engine.find_checkpoint import find_checkpoint
from retrievers.training.engine.save import load_heads
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.objective import Objective
from retrievers.training.pretrain.preset import Scratch, Start
from retrievers.training.pretrain.vocabulary import train_tokenizer

# What a checkpoint of an encoder need not hold, in files of Hugging Face models.
OF_THE_HEAD = re.compile(rf"^({'|'.join(sorted(set(HEAD_OF.values())))})\.|position_ids")


@dataclass(frozen=True)
class Started:
    """Encoder that training begins with.

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

    def build_module(self, objective: Objective, seed: int) -> nn.Module:
        """An objective's module around the encoder, with the heads of the checkpoint if it has any.

        Args:
            seed: of heads that are new.

        Raises:
            BenchError: see `load_heads` and the objective.
        """
        torch.manual_seed(seed)
        module = objective.build_module(self.encoder)
        if self.folder is not None:
            load_heads(module, self.encoder.encoder, self.folder, objective)
        return module


def open_start(start: Start, seed: int, documents: Sequence[str] = ()) -> Started:
    """Load the checkpoint, or make a new model; ``seed`` decides what is random.

    Args:
        documents: that a vocabulary is trained on, where the start asks for one.

    Raises:
        BenchError: there is no such checkpoint, it is damaged, or it is of an architecture
            that cannot be trained here.
        BenchError: see `train_tokenizer`.
    """
    torch.manual_seed(seed)
    if start.scratch is not None:
        return _new(start.scratch, documents)
    checkpoint, trained_on = find_checkpoint(start.model)
    model = _load(checkpoint)
    return Started(MaskedLM(model), load_tokenizer(checkpoint), checkpoint.root, trained_on)


def _new(scratch: Scratch, documents: Sequence[str]) -> Started:
    from transformers import BertConfig, BertForMaskedLM

    if scratch.vocabulary is None:
        tokenizer = load_tokenizer(find_checkpoint(scratch.tokenizer)[0])
    else:
        tokenizer = train_tokenizer(documents, scratch.vocabulary)
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
            f"start from a checkpoint of one of these types: {', '.join(HEAD_OF)}",
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
