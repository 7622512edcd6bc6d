"""Checkpoints small enough to train in a second, and trainings that end in the middle."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import load_file

from retrievers.training.engine.context import Progress, TrainingContext, read_curve
from retrievers.training.preset import PRETRAIN_PRESETS, Pretraining

WORDS = [
    *("river", "stone", "cloud", "bridge", "over", "under", "the"),
    *("of", "and", "gamma", "delta", "water", "flows", "slowly"),
]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}


def texts(count: int = 40) -> list[str]:
    """Sentences in which a word decides the next one, so that there is something to learn."""
    size = len(WORDS)
    return [
        " ".join(WORDS[(start + step * place) % size] for place in range(10))
        for start, step in ((number % size, 1 + number // size % 3) for number in range(count))
    ]


def write_start(
    folder: Path, texts: Sequence[str], kind: str = "bert", vocabulary: int = 300, **changes: Any
) -> Path:
    """An encoder without a head and its tokenizer."""
    folder.mkdir(parents=True)
    if kind == "bert":
        wordpiece = tokenizers.BertWordPieceTokenizer(lowercase=True)
        wordpiece.train_from_iterator(texts, vocab_size=vocabulary, show_progress=False)
        wordpiece.save_model(str(folder))
        tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    else:
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        bytes_ = tokenizers.ByteLevelBPETokenizer()
        bytes_.train_from_iterator(
            texts, vocab_size=vocabulary, special_tokens=special, show_progress=False
        )
        bytes_.save_model(str(folder))
        files = str(folder / "vocab.json"), str(folder / "merges.txt")
        tokenizer = transformers.RobertaTokenizerFast(*files)
    tokenizer.save_pretrained(str(folder))
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES, "vocab_size": len(tokenizer), **changes}
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
    else:
        config = transformers.RobertaConfig(**sizes, pad_token_id=1)
        model = transformers.RobertaModel(config, add_pooling_layer=False)
    model.save_pretrained(str(folder))
    return folder


def on_cpu(out: Path, **options: Any) -> TrainingContext:
    """A training into a folder, on the CPU."""
    return TrainingContext(out, device="cpu", **options)


def preset(start: Path, /, **changes: Any) -> Pretraining:
    """RetroMAE for 12 steps of 4 texts."""
    table = {
        "title": "small",
        "start": {"model": str(start)},
        "objective": {"name": "retromae"},
        "optimizer": {"lr": 0.003},
        "batch_size": 4,
        "max_tokens": 16,
        "steps": 12,
        **changes,
    }
    return PRETRAIN_PRESETS.convert(json.loads(json.dumps(table)), "test")


def weights(folder: Path | str) -> dict[str, torch.Tensor]:
    """Tensors of a trained folder by name; those of its heads, if any, begin with ``heads``."""
    own = load_file(Path(folder) / "model.safetensors")
    heads = Path(folder) / "heads" / "model.safetensors"
    found = load_file(heads) if heads.exists() else {}
    return own | {f"heads {name}": value for name, value in found.items()}


def have_equal_weights(one: Path | str, other: Path | str) -> bool:
    left, right = weights(one), weights(other)
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)


def losses(folder: Path) -> list[float]:
    return [point.losses["loss"] for point in read_curve(folder / "losses.jsonl")]


class KilledError(Exception):
    """Stands for a kill."""


def killed_at(step: int, stage: str = "") -> Callable[[Progress], None]:
    """A report of progress that kills the training at a step, of one stage where it is stated."""

    def kill(progress: Progress) -> None:
        if (progress.unit, progress.done) == ("steps", step) and stage in ("", progress.stage):
            raise KilledError

    return kill
