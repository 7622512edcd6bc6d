"""Masked language models of one layer with random weights, as folders."""

from pathlib import Path
from typing import Any

import torch
import transformers


def write_generator(
    folder: Path, tokenizer: Any, *, dropout: float = 0.0, positions: int = 66
) -> Path:
    """A DistilBERT with its head and a tokenizer."""
    torch.manual_seed(1)
    config = transformers.DistilBertConfig(
        vocab_size=len(tokenizer),
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=24,
        max_position_embeddings=positions,
        dropout=dropout,
        attention_dropout=dropout,
        initializer_range=0.5,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.DistilBertForMaskedLM(config).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder
