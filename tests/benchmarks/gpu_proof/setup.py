"""What all parts share: sizes, device, checkpoints with random weights, texts, open encoders."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bench.store.planning import HALF_SHARD_ROWS
from retrievers.encoders.routed import open_encoder
from retrievers.encoders.transformer import TransformerEncoder
from retrievers.models.model import Model, resolve_model
from retrievers.models.recipe import Dtype
from tests.benchmarks.gpu_proof.texts import TextMaker, byte_level_tokenizer, wordpiece_tokenizer

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bert": {**BASE, "intermediate_size": 3072},
    "roberta": {**BASE, "intermediate_size": 3072},
    "minilm": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
}
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
TITLES: Mapping[str, str] = {"bert": "BERT-base", "roberta": "RoBERTa-base", "minilm": "MiniLM-L6"}


@dataclass(frozen=True)
class Sizes:
    """How much is measured; what is not stated is as on a GPU.

    Attributes:
        matrix: rows and columns of a matrix product; half as many in float64.
        copied: bytes of one copy.
        shapes: of each network.
        word_types, vocabulary: of the synthetic language and of WordPiece.
        positions: longest text in tokens.
        texts: whose vectors are compared.
        networks: compiled in one process.
        lengths: of texts whose encoding is timed, in tokens; 0 stands for those of MS MARCO.
        tokens: that are encoded for one timing.
        stored: passages that go through the store: several shards, as of a corpus.
        singles: queries that are encoded one by one.
        dim: of vectors that are searched.
        equal_rows, equal_queries, depths: of searches that are compared with the CPU's.
        rows: of corpora whose search is timed.
        queries, depth: of a timed search.
        sampled: queries of a timed search that are compared with the CPU's.
        lists: of inverted files.
        steps, batch, length: of a training.
        dpr_lr: learning rate of DPR: a small network needs a large one to learn in so few steps.
    """

    matrix: int = 8192
    copied: int = 1 << 32
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: SHAPES)
    word_types: int = 200_000
    vocabulary: int = 30_522
    positions: int = 512
    texts: int = 512
    networks: int = 12
    lengths: tuple[int, ...] = (128, 256, 512, 0)
    tokens: int = 1 << 21
    stored: int = 4 * HALF_SHARD_ROWS
    singles: int = 300
    dim: int = 768
    equal_rows: int = 200_000
    equal_queries: int = 256
    depths: tuple[int, ...] = (10, 1_000, 3_000)
    rows: tuple[int, ...] = (1_000_000, 8_841_823)
    queries: int = 6_980
    depth: int = 1_000
    sampled: int = 16
    lists: int = 1_024
    steps: int = 20
    batch: int = 128
    length: int = 128
    dpr_lr: float = 2e-4


FULL = Sizes()
DRY = Sizes(
    matrix=128,
    copied=1 << 20,
    shapes=dict.fromkeys(SHAPES, TINY),
    word_types=600,
    vocabulary=500,
    positions=64,
    texts=64,
    networks=3,
    lengths=(16, 0),
    tokens=1 << 11,
    stored=150,
    singles=10,
    dim=48,
    equal_rows=4_000,
    equal_queries=7,
    rows=(3_000, 9_000),
    queries=20,
    depth=100,
    sampled=4,
    lists=16,
    batch=16,
    length=16,
    dpr_lr=1e-2,
)


@dataclass(frozen=True)
class Setup:
    """Where and with what the parts run.

    Attributes:
        device: ``cuda``, or ``cpu`` in a dry run.
        folder: for files that nobody needs afterwards.
        weights: folder with real checkpoints named ``bert``, ``roberta`` and ``minilm``; random
            ones stand in for those that are not there.
    """

    sizes: Sizes
    device: str
    folder: Path
    weights: Path | None = None
    _encoders: dict[tuple[str, str], TransformerEncoder] = field(default_factory=dict)
    _passages: dict[tuple[int, int, int], list[str]] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """False in a dry run on the CPU."""
        return self.device.startswith("cuda")

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """Half precisions; the CPU has no float16."""
        return ("bfloat16", "float16") if self.on_gpu else ("bfloat16",)

    @property
    def peer_dtype(self) -> str:
        """That of sentence-transformers."""
        return "float16" if self.on_gpu else "float32"

    def checkpoint(self, kind: str) -> Path:
        """Folder of a checkpoint: the given one, or one with random weights."""
        if self.weights is not None and (self.weights / kind).is_dir():
            return (self.weights / kind).resolve()
        folder = self.folder / kind
        if not folder.is_dir():
            write_random(folder, kind, self.sizes)
        return folder.resolve()

    def card(self, kind: str) -> Path:
        """A card that uses the checkpoint with the mean of its tokens, and unit vectors."""
        return self.write_card(kind, self.checkpoint(kind))

    def write_card(self, name: str, checkpoint: Path) -> Path:
        """A card of that name beside the checkpoints."""
        path, longest = self.folder / f"{name}.toml", self.sizes.positions
        path.write_text(
            f'name = "{name}"\ntitle = "{TITLES.get(name, name)}"\n'
            f"checkpoint = {json.dumps(str(checkpoint))}\n"
            'pooling = "mean"\nnormalize = true\nsimilarity = "cos"\n'
            f"max_query_tokens = {longest}\nmax_document_tokens = {longest}\n",
            encoding="utf-8",
        )
        return path

    def model(self, kind: str, dtype: Dtype) -> Model:
        """A checkpoint as the product resolves it."""
        return resolve_model(str(self.card(kind)), dtype=dtype)

    def encoder(self, kind: str, dtype: Dtype) -> TransformerEncoder:
        """The product's encoder; opened, and compiled, once."""
        key = kind, dtype
        if key not in self._encoders:
            self._encoders[key] = open_transformer(self.model(kind, dtype), self.device)
        return self._encoders[key]

    @cached_property
    def language(self) -> TextMaker:
        """Texts of the tokenizer that BERT and MiniLM share, of stated lengths."""
        return TextMaker.of(self.checkpoint("minilm"), self.sizes.word_types)

    def passages(self, tokens: int, count: int, seed: int = 0) -> list[str]:
        """Passages of ``tokens`` tokens each, special tokens included; 0: as MS MARCO's are."""
        key = tokens, count, seed
        if key not in self._passages:
            most = self.sizes.positions
            lengths = np.full(count, tokens) if tokens else marco_lengths(count, most)
            self._passages[key] = self.language.many(lengths - 2, seed)
        return self._passages[key]


def open_transformer(model: Model, device: str) -> TransformerEncoder:
    """The product's encoder of a model."""
    encoder = open_encoder(model, device)
    if not isinstance(encoder, TransformerEncoder):
        raise TypeError(f"{model.card.name} is no transformer")
    return encoder


def marco_lengths(count: int, longest: int) -> Any:
    """Lengths in WordPieces like those of MS MARCO's passages, int64 ``(count,)``.

    A lognormal distribution with median 75 and sigma .4, fitted to 6,998 passages, whose mean is 83
    and median 72.
    """
    drawn = np.random.default_rng(1).lognormal(np.log(75), 0.4, count)
    return drawn.round().astype(np.int64).clip(10, min(250, longest))


def write_random(folder: Path, kind: str, sizes: Sizes, **changes: Any) -> None:
    """An encoder with random weights, and a tokenizer of a synthetic language."""
    import torch

    folder.mkdir(parents=True)
    make = byte_level_tokenizer if kind == "roberta" else wordpiece_tokenizer
    make(sizes.word_types, sizes.vocabulary).save_pretrained(str(folder))
    torch.manual_seed(0)
    random_network(kind, sizes, **changes).save_pretrained(str(folder))


def random_network(kind: str, sizes: Sizes, **changes: Any) -> Any:
    """A Hugging Face encoder with random weights, in eval mode.

    Tiny networks have larger weights, as otherwise hardly any of a vector would come from them.
    """
    import transformers

    shape = {**sizes.shapes[kind], "initializer_range": 0.02 if sizes.positions > 64 else 0.1}
    if kind == "roberta":
        positions = {"max_position_embeddings": sizes.positions + 2, "type_vocab_size": 1}
        vocabulary = {"vocab_size": 50_265, "pad_token_id": 1}
        config = transformers.RobertaConfig(**(positions | vocabulary | shape | changes))
        network: Any = transformers.RobertaModel(config)
    else:
        positions = {"max_position_embeddings": sizes.positions, "vocab_size": sizes.vocabulary}
        network = transformers.BertModel(transformers.BertConfig(**(positions | shape | changes)))
    return network.eval()
