"""Cards of other architectures, used on small checkpoints laid out as the published ones.

The oracle is sentence-transformers on the same folder, with the card's prompts passed by hand.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from foundation.errors import BenchError
from retrievers.encoders.tokens import load_tokenizer
from retrievers.encoders.transformer import open_encoder
from retrievers.models.card import load_card
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny

sentence_transformers = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

TEXTS = ["the river of stone " * 6, "cloud", "", "Alpha, beta: gamma?", "delta " * 30]
TITLES = ["", "river", "stone", "", "the cloud"]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
HEADS = {"num_key_value_heads": 1, "head_dim": 16}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def write_byte_tokenizer(folder: Path, before: str, after: str, **settings: Any) -> None:
    """A fast tokenizer of bytes whose texts begin and end with special tokens."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: row for row, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    used = [(token, vocabulary[token]) for token in (before, after) if token]
    if used:
        single = f"{before} $A {after}".strip()
        tokenizer.post_processor = processors.TemplateProcessing(
            single, f"{single} {single.replace('$A', '$B')}", used
        )
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    settings |= {"model_input_names": ["input_ids", "attention_mask"]}
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **settings)
    saved.save_pretrained(str(folder))


def network(folder: Path, kind: str, **settings: Any) -> None:
    """A small network of a class of transformers, with random weights."""
    sizes = {**tiny.SIZES, "vocab_size": 300, **settings}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    name = {"Gemma3Text": "Gemma3TextModel"}.get(kind, f"{kind}Model")
    tiny.seeded(lambda: getattr(transformers, name)(config)).save_pretrained(str(folder))


def qwen3(folder: Path) -> None:
    """The end of the text is appended by the tokenizer and pooled; padding is on the left."""
    network(folder, "Qwen3", **HEADS, **ENDS, max_position_embeddings=512)
    write_byte_tokenizer(folder, "", "</s>", padding_side="left")


def mistral(folder: Path) -> None:
    network(folder, "Mistral", **HEADS, **ENDS, max_position_embeddings=512, sliding_window=8)
    write_byte_tokenizer(folder, "<s>", "</s>", padding_side="left")


def gemma(folder: Path) -> None:
    """Attention in both directions."""
    settings = {"sliding_window": 8, "use_bidirectional_attention": True}
    layers = ["sliding_attention", "full_attention"]
    network(folder, "Gemma3Text", **HEADS, **ENDS, **settings, layer_types=layers)
    write_byte_tokenizer(folder, "<s>", "</s>")


def modernbert(folder: Path) -> None:
    settings = {"cls_token_id": 1, "sep_token_id": 2, **ENDS}
    network(folder, "ModernBert", **settings, max_position_embeddings=8192)
    write_byte_tokenizer(folder, "<s>", "</s>")


def xlm_roberta(folder: Path) -> None:
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    network(folder, "XLMRoberta", **ends, max_position_embeddings=8194, type_vocab_size=1)
    write_byte_tokenizer(folder, "<s>", "</s>")


def bert(folder: Path) -> None:
    network(folder, "Bert", pad_token_id=0, max_position_embeddings=512)
    write_byte_tokenizer(folder, "<s>", "</s>")


# A card of each layout, and how its checkpoint is laid out.
LAYOUTS: dict[str, Callable[[Path], None]] = {
    "qwen3-embedding-0.6b": qwen3,
    "e5-mistral": mistral,
    "embeddinggemma": gemma,
    "gte-modernbert": modernbert,
    "bge-m3": xlm_roberta,
    "e5-base-v2": bert,
    "mxbai-large": bert,
}
POOLING = {"cls": "cls", "mean": "mean", "last": "lasttoken"}


def save_as_published(folder: Path, write: Callable[[Path], None], card: str) -> Any:
    """Save the layout with the modules that the card states, and return it."""
    write(folder / "plain")
    stated = load_card(card)
    modules = [
        parts.Transformer(str(folder / "plain"), max_seq_length=256),
        parts.Pooling(32, pooling_mode=POOLING[stated.pooling]),
    ]
    torch.manual_seed(3)
    widths = (32, 48, 32)
    for place, _ in enumerate(stated.stages):
        size = {"in_features": widths[place], "out_features": widths[place + 1], "bias": False}
        modules.append(parts.Dense(**size, activation_function=torch.nn.Identity()))
    model = sentence_transformers.SentenceTransformer(
        modules=[*modules, parts.Normalize()], device="cpu", similarity_fn_name="cosine"
    )
    model.save(str(folder / "st"))
    return sentence_transformers.SentenceTransformer(str(folder / "st"), device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("card", LAYOUTS)
def test_a_card_gives_the_vectors_of_sentence_transformers(tmp_path: Path, card: str) -> None:
    theirs = save_as_published(tmp_path, LAYOUTS[card], card)
    resolved = resolve_model(
        str(tmp_path / "st"),
        ModelSettings(like=card, dtype="float32", max_query_tokens=256, max_document_tokens=256),
    )
    prompts = load_card(card).prompts
    joined = [f"{title} {text}".strip() for title, text in zip(TITLES, TEXTS, strict=True)]
    for dataset in ("beir/scifact", "beir/quora"):
        ours = open_encoder(resolved.for_dataset(dataset), "cpu")
        asked = prompts.datasets.get(dataset, prompts)
        pairs = [
            (theirs.encode(TEXTS, prompt=asked.query), ours.encode_queries(TEXTS)),
            (theirs.encode(joined, prompt=asked.document), ours.encode_documents(TITLES, TEXTS)),
        ]
        for expected, vectors in pairs:
            np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_card_of_a_checkpoint_with_code_needs_permission_and_adds_prompts(tmp_path: Path) -> None:
    """As arctic-embed-m-v2, through sentence-transformers itself."""
    theirs = save_as_published(tmp_path, bert, "mxbai-large")
    stated = load_card("arctic-embed-m-v2")
    card = str(
        tiny.write_card(
            tmp_path / "mine.toml",
            kind=stated.kind,
            checkpoint="st",
            normalize=stated.normalize,
            similarity=stated.similarity,
            prompts={"query": stated.prompts.query},
            max_query_tokens=stated.max_query_tokens,
            max_document_tokens=stated.max_document_tokens,
        )
    )
    ours, prompt = open_encoder(resolve_model(card), "cpu"), "query: "
    joined = [f"{title} {text}".strip() for title, text in zip(TITLES, TEXTS, strict=True)]
    pairs = [
        (theirs.encode(TEXTS, prompt=prompt), ours.encode_queries(TEXTS)),
        (theirs.encode(joined), ours.encode_documents(TITLES, TEXTS)),
    ]
    for expected, vectors in pairs:
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    config = json.loads((tmp_path / "st" / "config.json").read_text())
    code = {"auto_map": {"AutoModel": "own.Model"}}
    tiny.write_json(tmp_path / "st" / "config.json", config | code)
    with pytest.raises(BenchError, match="mine runs code of its own") as refused:
        resolve_model(card)
    assert "--trust-code" in refused.value.hint


def test_instructions_are_those_of_each_collection() -> None:
    card = load_card("qwen3-embedding-0.6b")
    plain, scifact = card.prompts, card.prompts.datasets["beir/scifact"]
    assert plain.query.startswith("Instruct: Given a web search query, ")
    assert plain.query.endswith("\nQuery:")
    assert "Given a scientific claim" in scifact.query
    assert not plain.document


@pytest.mark.parametrize("stated", [True, False])
def test_an_end_of_text_that_only_the_configuration_states_is_appended(
    tmp_path: Path, stated: bool
) -> None:
    """As in e5-mistral, whose tokenizer.json adds the beginning alone."""
    network(tmp_path, "Mistral", **HEADS, **ENDS, max_position_embeddings=512)
    write_byte_tokenizer(tmp_path, "<s>", "", padding_side="left")
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    changes = {"add_bos_token": True, "add_eos_token": stated, "tokenizer_class": "LlamaTokenizer"}
    path.write_text(json.dumps({**settings, **changes}))
    checkpoint = resolve_model(str(tmp_path), ModelSettings(like="e5-mistral")).checkpoint
    ids = load_tokenizer(checkpoint)("river")["input_ids"]
    assert (ids[0], ids[-1] == 2) == (1, stated)
