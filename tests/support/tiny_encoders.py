"""Tiny BERT and RoBERTa encoders with random weights, and a genuine WordPiece tokenizer."""

from pathlib import Path
from typing import Any

import torch
import transformers

from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.objective import Example

ARCHITECTURES = ("bert", "roberta")
WORDS = [
    *("alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "bridge"),
    *("the", "of", "and", "a", "in", "over", "under"),
]
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *WORDS,
    *(letter for letter in "bcdefghijklmnopqrstuvwxyz"),
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    *(".", ","),
]
TEXTS = [
    "the river over the stone. a bridge of stone in the cloud",
    "alpha beta gamma delta alpha beta gamma delta alpha beta. gamma under delta",
    "cloud under the bridge of clouds and stones. the stone and the river",
    "in the river a stone, under the stone a river. alpha and beta",
    "gamma gamma gamma gamma. delta of delta in delta",
    "a of and the in. over under a the of and",
]


def encoder(architecture: str = "bert", *, dropout: float = 0.0, **changes: Any) -> MaskedLM:
    """Four layers of width 16 in training mode, in float64; the same weights every time."""
    sizes = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 40,
        "initializer_range": 0.3,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    kinds = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM),
    }
    config, model = kinds[architecture]
    return MaskedLM(model(config(**{**sizes, **changes}))).double().train()


def tokenizer(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    return transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)


def examples(texts: list[str], first_draw: int = 0) -> list[Example]:
    return [Example(text=text, draw=first_draw + i) for i, text in enumerate(texts)]


def train(heads: torch.nn.Module, batch: dict[str, Any], steps: int, lr: float) -> list[float]:
    """Losses of AdamW steps over one batch."""
    optimizer = torch.optim.AdamW(heads.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = heads(**batch)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def gradients(heads: torch.nn.Module, batch: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Gradients of the loss by name of the weights; ``seed`` is that of dropout."""
    torch.manual_seed(seed)
    heads.zero_grad()
    heads(**batch)["loss"].backward()
    found = {name: weight.grad for name, weight in heads.named_parameters()}
    return {name: grad.clone() for name, grad in found.items() if grad is not None}
