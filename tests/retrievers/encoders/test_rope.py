"""Rotary positions whose frequencies depend on the length of a text.

The oracle is a forward pass of a newly loaded network for each text.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from foundation.arrays import Float32Array
from retrievers.encoders.transformer import open_encoder
from retrievers.models.positions import mixable_length
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny

ORIGINAL = 32  # tokens
ROPE: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 8.0},
    "longrope": {
        "rope_type": "longrope",
        "factor": 8.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": ORIGINAL,
    },
}


def draw_texts() -> list[str]:
    """Texts on both sides of the original length, in a mixed order."""
    rng = np.random.default_rng(0)
    counts = rng.permutation([*rng.integers(2, 28, 12), *rng.integers(30, 90, 6)])
    return [" ".join(rng.choice(tiny.WORDS, count)) for count in counts]


def write_llama(folder: Path, kind: str) -> Path:
    sizes = {**tiny.SIZES, "vocab_size": len(tiny.VOCABULARY)}
    rope, longest = ROPE[kind], ORIGINAL if kind == "dynamic" else 256
    config = transformers.LlamaConfig(
        **sizes,
        max_position_embeddings=longest,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        rope_scaling=rope,
        original_max_position_embeddings=ORIGINAL,
    )
    tiny.seeded(lambda: transformers.LlamaModel(config)).save_pretrained(str(folder))
    tiny.write_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    tiny.write_json(path, json.loads(path.read_text()) | {"model_max_length": 256})
    return folder


def encode_apart(folder: Path, texts: list[str]) -> Float32Array:
    tokenizer, vectors = transformers.AutoTokenizer.from_pretrained(str(folder)), []
    for text in texts:
        network = transformers.AutoModel.from_pretrained(str(folder)).eval()
        with torch.inference_mode():
            hidden = network(input_ids=tokenizer([text], return_tensors="pt")["input_ids"])[0]
        vectors.append(hidden.mean(dim=1)[0].numpy())
    return np.stack(vectors)


@pytest.mark.parametrize("kind", ROPE)
def test_a_text_alone_is_the_same_in_any_batch_after_any_text_and_in_any_thread(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, texts = write_llama(tmp_path / "llama", kind), draw_texts()
    fields = {"checkpoint": str(folder), "pooling": "mean", "max_document_tokens": 200}
    model = resolve_model(str(tiny.write_card(tmp_path / "card.toml", **fields)))
    expected, threads = encode_apart(folder, texts), torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        try:
            encoder = open_encoder(model, "cpu")
            for _ in range(3):
                found = encoder.encode_documents([""] * len(texts), texts)
                np.testing.assert_allclose(found, expected, atol=1e-5)
        finally:
            torch.set_num_threads(threads)
    assert f"beyond {ORIGINAL} tokens, its rotary frequencies depend" in caplog.text


def test_the_library_encodes_texts_one_by_one(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules

    plain, texts = write_llama(tmp_path / "llama", "dynamic"), draw_texts()
    whole = [modules.Transformer(str(plain)), modules.Pooling(32, pooling_mode="mean")]
    folder = tmp_path / "st"
    st.SentenceTransformer(modules=whole, device="cpu", similarity_fn_name="dot").save(str(folder))
    path = folder / "config_sentence_transformers.json"
    tiny.write_json(path, json.loads(path.read_text()) | {"unknown": True})
    path = folder / "sentence_bert_config.json"
    tiny.write_json(path, json.loads(path.read_text()) | {"max_seq_length": 256})
    encoder = open_encoder(resolve_model(str(folder)), "cpu")
    assert encoder.recipe.kind == "python"
    found = encoder.encode_documents([""] * len(texts), texts)
    np.testing.assert_allclose(found, encode_apart(plain, texts), atol=1e-5)


def test_only_models_whose_vectors_were_wrong_get_another_fingerprint(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", "dynamic")
    card = tiny.write_card(tmp_path / "card.toml", checkpoint=str(folder), pooling="mean")
    assert not resolve_model(str(card)).recipe.options
    assert resolve_model(str(card), ModelSettings(max_document_tokens=64)).recipe.options


def test_all_other_kinds_of_positions_share_batches() -> None:
    known = {"rope_type": "default"}, {"type": "linear"}, {"rope_type": "yarn"}, None
    for scaling in known:
        assert mixable_length({"rope_scaling": scaling, "max_position_embeddings": 9}) is None
    layers = {"sliding_attention": {"rope_type": "default"}, "full_attention": ROPE["dynamic"]}
    assert mixable_length({"rope_parameters": layers, "max_position_embeddings": 9}) == 9
    assert mixable_length({"rope_parameters": {"rope_type": "new"}}) == 0
