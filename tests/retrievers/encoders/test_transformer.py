"""The encoder of transformer cards: order, batches, repeats, refusals, and the real MiniLM."""

import json
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from foundation import machine
from foundation.errors import BenchError
from retrievers.encoders.protocol import join
from retrievers.encoders.transformer import open_encoder, plan_batches
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny


@pytest.fixture
def card(tmp_path: Path) -> str:
    tiny.write_bert(tmp_path / "bert")
    return str(tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="mean"))


@pytest.mark.parametrize(
    ("rule", "title", "segments"),
    [
        ("space", "Title", ("p: Title text", None)),
        ("space", "", ("p: text", None)),
        ("pair", "Title", ("p: Title", "text")),
        ("pair", "", ("p: text", None)),
        ("sep", "Title", ("p: Title [SEP] text", None)),
        ("sep", "", ("p: text", None)),
        ("none", "Title", ("p: text", None)),
    ],
)
def test_titles_are_joined_by_the_rule(rule: Any, title: str, segments: Any) -> None:
    assert join(rule, "p: ", title, "text", "[SEP]") == segments


@given(st.lists(st.integers(0, 300), max_size=200), st.integers(1, 1000), st.booleans())
def test_batches_hold_each_text_once_and_as_many_as_fit(
    lengths: list[int], most: int, packed: bool
) -> None:
    def cost(texts: np.ndarray) -> int:
        return int(texts.sum() if packed else len(texts) * texts.max())

    sizes = np.array(lengths, dtype=np.int64)
    batches = list(plan_batches(sizes, most, packed))
    rows = np.concatenate(batches) if batches else np.array([], dtype=np.int64)
    assert sorted(rows.tolist()) == list(range(len(lengths)))
    assert sizes[rows].tolist() == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or cost(sizes[batch]) <= most for batch in batches)
    for batch, following in pairwise(batches):
        assert cost(sizes[[*batch, following[0]]]) > most or sizes[batch[0]] == 0


@pytest.mark.parametrize("given", [True, False], ids=["given by the tokenizer", "not given"])
def test_token_types_are_fed_where_the_tokenizer_gives_them(given: bool, tmp_path: Path) -> None:
    """GPT-2 accepts them, and would add the embedding of the token 0 for the type 0."""
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, vocab_size=60)
    network = tiny.seeded(lambda: transformers.GPT2Model(config))
    network.save_pretrained(str(tmp_path / "gpt2"))
    wordpiece = tiny.write_tokenizer(tmp_path / "wordpiece")
    names = ["input_ids", *(["token_type_ids"] if given else []), "attention_mask"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=wordpiece.backend_tokenizer, model_input_names=names, pad_token="[PAD]"
    )
    tokenizer.save_pretrained(str(tmp_path / "gpt2"))
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="gpt2", pooling="mean")
    inputs = tokenizer([tiny.SENTENCES[0]], return_tensors="pt")
    assert ("token_type_ids" in inputs) == given
    with torch.inference_mode():
        expected = network(**inputs).last_hidden_state.mean(dim=1).numpy()
    found = open_encoder(resolve_model(str(card)), "cpu").encode_queries([tiny.SENTENCES[0]])
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_documents_prepared_in_another_thread_give_the_same_bytes(card: str) -> None:
    encoder: Any = open_encoder(resolve_model(card), "cpu")
    expected = encoder.encode_documents(tiny.TITLES, tiny.SENTENCES)
    advanced: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        encode = pool.submit(encoder.prepare_documents, tiny.TITLES, tiny.SENTENCES).result()
    assert encode(advanced.append).tobytes() == expected.tobytes()
    assert sum(advanced) == len(tiny.SENTENCES)


def test_the_timer_splits_time_by_phase_and_counts_tokens_without_padding(card: str) -> None:
    encoder: Any = open_encoder(resolve_model(card), "cpu")
    other = encoder.for_dataset("beir/scifact")
    encoder.encode_documents(["", ""], ["alpha beta", "cloud"])
    other.encode_queries(["stone"])
    assert encoder.timer.counts == {"tokens": 4 + 3 + 3}
    assert set(encoder.timer.seconds) == {"load", "tokenise", "copy", "forward"}
    assert all(spent > 0 for spent in encoder.timer.seconds.values())


def test_equal_inputs_are_encoded_once_and_counted_each_time(
    card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retrievers.encoders.tower import Tower

    seen: list[int] = []
    original = Tower.vectors

    def vectors(self: Tower, tokens: Any, batches: Any) -> Any:
        for rows, found in original(self, tokens, batches):
            seen.append(len(rows))
            yield rows, found

    monkeypatch.setattr(Tower, "vectors", vectors)
    advanced: list[int] = []
    encoder = open_encoder(resolve_model(card), "cpu")
    vectors = encoder.encode_documents(
        ["alpha", "", "alpha", "alpha"], ["stone", "alpha stone", "stone", "cloud"], advanced.append
    )
    assert sum(seen) == 2
    assert sum(advanced) == 4
    assert vectors[0].tobytes() == vectors[1].tobytes() == vectors[2].tobytes()
    assert vectors[3].tobytes() != vectors[0].tobytes()


def test_lengths_are_counted_before_they_are_cut(card: str) -> None:
    encoder: Any = open_encoder(resolve_model(card, ModelSettings(max_query_tokens=4)), "cpu")
    assert encoder.count_query_tokens(["alpha beta gamma delta", ""]) == [6, 2]
    assert encoder.count_document_tokens(["alpha", ""], ["beta " * 70, "beta"]) == [73, 3]


def test_two_encoders_of_different_width_are_refused(tmp_path: Path) -> None:
    tiny.write_bert(tmp_path / "documents")
    tiny.write_bert(tmp_path / "queries", hidden_size=16)
    card = tiny.write_card(
        tmp_path / "tiny.toml", checkpoint="documents", query_checkpoint="queries", pooling="cls"
    )
    with pytest.raises(BenchError, match="gave 16 dimensions, not 32"):
        open_encoder(resolve_model(str(card)), "cpu").encode_queries(["alpha"])


@pytest.mark.parametrize(("length", "join"), [(1, "space"), (2, "space"), (3, "pair")])
def test_a_length_without_room_for_a_text_is_refused(
    tmp_path: Path, length: int, join: str
) -> None:
    tiny.write_bert(tmp_path / "bert")
    fields = {"checkpoint": "bert", "pooling": "mean", "title_join": join}
    path = tiny.write_card(tmp_path / "tiny.toml", **fields, max_document_tokens=length)
    encoder = open_encoder(resolve_model(str(path)), "cpu")
    with pytest.raises(BenchError, match=f"{length} tokens leave none for a text") as caught:
        encoder.encode_documents(["alpha"], ["beta"])
    assert f"to {length + 1 if length > 1 else 3} or more" in caught.value.hint


def test_an_encoder_for_a_dataset_shares_the_weights_and_changes_the_prompt(tmp_path: Path) -> None:
    tiny.write_bert(tmp_path / "bert")
    prompts = {"query": "alpha ", "datasets": {"beir/quora": {"query": ""}}}
    card = tiny.write_card(
        tmp_path / "tiny.toml", checkpoint="bert", pooling="mean", prompts=prompts
    )
    encoder: Any = open_encoder(resolve_model(str(card)), "cpu")
    quora = encoder.for_dataset("beir/quora")
    np.testing.assert_array_equal(
        encoder.encode_queries(["stone"]), quora.encode_queries(["alpha stone"])
    )
    assert quora.recipe.fingerprint != encoder.recipe.fingerprint


def damage(tmp_path: Path, change: Any) -> str:
    """A card of a pickle checkpoint whose state dict was changed."""
    tiny.write_mlm_pickle(tmp_path / "bert")
    path = tmp_path / "bert" / "pytorch_model.bin"
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)
    return str(tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="cls"))


def encode(card: str) -> Any:
    return open_encoder(resolve_model(card), "cpu").encode_queries(tiny.SENTENCES)


LAYER, TABLE = "bert.encoder.layer.1.output.dense", "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state: state.pop(f"{LAYER}.weight"), r"lacks 1 weights.*layer\.1\.output\.dense"),
        (lambda state: state.update({TABLE: torch.zeros(3, 32)}), "cannot be loaded|lacks"),
        (lambda state: state[f"{LAYER}.bias"].fill_(float("nan")), "NaN or infinity"),
    ],
)
def test_a_missing_or_wrong_weight_is_an_error(tmp_path: Path, change: Any, problem: str) -> None:
    with pytest.raises(BenchError, match=problem):
        encode(damage(tmp_path, change))


def test_a_missing_pooler_matters_only_if_it_is_used(tmp_path: Path) -> None:
    card = damage(tmp_path, lambda state: None)
    assert np.isfinite(encode(card)).all()
    Path(card).write_text(Path(card).read_text().replace('"cls"', '"pooler"'))
    with pytest.raises(BenchError, match=r"pooler\.dense"):
        encode(card)


def test_weights_that_nothing_reads_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {"bert.encoder.layer.7.output.dense.weight": torch.zeros(2)}
    with caplog.at_level(logging.WARNING):
        encode(damage(tmp_path, lambda state: state.update(extra)))
    assert "1 weights are not used" in caplog.text  # the head of masked-language modelling is none


@pytest.mark.parametrize("form", ["zip", "plain"])
def test_a_malicious_pickle_is_not_executed(tmp_path: Path, form: str) -> None:
    card = damage(tmp_path, lambda state: None)
    path, target = tmp_path / "bert" / "pytorch_model.bin", tmp_path / "trapped"
    if form == "zip":
        torch.save({"weight": tiny.Trap(target)}, path)
    else:
        path.write_bytes(pickle.dumps({"weight": tiny.Trap(target)}, protocol=2))
    with pytest.raises(BenchError, match="cannot be loaded") as caught:
        encode(card)
    assert not target.exists()
    assert "Nothing in it was executed" in caught.value.hint
    with suppress(RuntimeError):
        torch.load(path, weights_only=False)
    assert target.exists(), "the trap works where nothing stops it"


def test_a_malicious_pickle_of_a_stage_is_not_executed(tmp_path: Path) -> None:
    tiny.write_bert(tmp_path / "bert")
    settings = {"out_features": 8, "activation_function": "torch.nn.modules.linear.Identity"}
    tiny.write_json(tmp_path / "bert" / "2_Dense" / "config.json", settings)
    torch.save(
        {"linear.weight": tiny.Trap(tmp_path / "trapped")},
        tmp_path / "bert" / "2_Dense" / "pytorch_model.bin",
    )
    card = tiny.write_card(
        tmp_path / "tiny.toml",
        checkpoint="bert",
        pooling="cls",
        stages=[{"kind": "dense", "folder": "2_Dense"}],
    )
    with pytest.raises(BenchError, match="cannot be loaded"):
        encode(str(card))
    assert not (tmp_path / "trapped").exists()


def test_a_stage_that_is_not_in_the_checkpoint_is_named(tmp_path: Path) -> None:
    tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(
        tmp_path / "tiny.toml",
        checkpoint="bert",
        pooling="cls",
        stages=[{"kind": "dense", "key": "embeddingHead", "width": 8}],
    )
    with pytest.raises(BenchError, match="no weights for the stage key:embeddingHead"):
        encode(str(card))


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    card = damage(tmp_path, lambda state: None)
    (tmp_path / "bert" / "tokenizer.json").write_text("{}")
    with pytest.raises(BenchError, match=r"the tokenizer in .* cannot be loaded"):
        encode(card)


def test_a_tokenizer_without_a_special_token_that_it_uses_is_refused_or_repaired(
    tmp_path: Path,
) -> None:
    tiny.write_bert(tmp_path / "bert")
    path = tmp_path / "bert" / "tokenizer.json"
    content = json.loads(path.read_text())
    del content["post_processor"]["special_tokens"]["[CLS]"]
    path.write_text(json.dumps(content))
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="cls")
    whole = tiny.write_card(tmp_path / "whole.toml", checkpoint="whole", pooling="cls")
    tiny.write_bert(tmp_path / "whole")
    if transformers.__version__ < "5":
        with pytest.raises(BenchError, match=r"tokenizer in .* cannot be loaded"):
            encode(str(card))
    else:  # adds the special tokens of a BERT itself
        np.testing.assert_array_equal(encode(str(card)), encode(str(whole)))


def test_tokens_that_the_network_does_not_know_are_bad_input(tmp_path: Path) -> None:
    tiny.write_bert(tmp_path / "bert", vocab_size=20)
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="cls")
    with pytest.raises(BenchError, match="cannot be run: index out of range") as caught:
        open_encoder(resolve_model(str(card)), "cpu").encode_queries(["zzz"])
    assert "tokenizer" in caught.value.hint


def test_the_separator_rule_needs_a_separator_token(tmp_path: Path) -> None:
    tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(
        tmp_path / "tiny.toml", checkpoint="bert", pooling="cls", title_join="sep"
    )
    encoder: Any = open_encoder(resolve_model(str(card)), "cpu")
    encoder._towers.document.tokenizer.sep_token = None
    with pytest.raises(BenchError, match="no separator token"):
        encoder.encode_documents(["alpha"], ["beta"])


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "cuda:x"])
def test_a_missing_device_is_refused(card: str, device: str) -> None:
    with pytest.raises(BenchError, match=device):
        open_encoder(resolve_model(card), device).encode_queries(["alpha"])


def test_float16_needs_a_gpu_and_bfloat16_does_not(card: str) -> None:
    with pytest.raises(BenchError, match="float16 needs a GPU"):
        open_encoder(resolve_model(card, ModelSettings(dtype="float16")), "cpu").encode_queries(
            ["alpha"]
        )
    half = open_encoder(resolve_model(card, ModelSettings(dtype="bfloat16")), "cpu").encode_queries(
        ["alpha"]
    )
    full = open_encoder(resolve_model(card), "cpu").encode_queries(["alpha"])
    assert half.dtype == np.float32
    assert 0 < np.abs(half - full).max() < 0.1


@pytest.mark.parametrize(("dtype", "said"), [("bfloat16", True), ("float32", False)])
def test_emulated_bfloat16_is_reported(
    tmp_path: Path,
    card: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dtype: str,
    said: bool,
) -> None:
    (tmp_path / "cpuinfo").write_text("flags : avx2 avx512f\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    open_encoder(resolve_model(card, ModelSettings(dtype=dtype)), "cpu").encode_queries(["alpha"])
    assert ("no bfloat16 instructions" in caplog.text) == said


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)
def test_float32_ignores_global_precision_switches_and_leaves_them(card: str) -> None:
    encoder: Any = open_encoder(resolve_model(card), "cpu")
    expected = encoder.encode_queries(tiny.SENTENCES)
    seen: list[str] = []

    def look(*_: Any) -> None:
        places = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
        seen.extend(place.fp32_precision for place in places)

    encoder._towers.query._encoder._network.register_forward_pre_hook(look)
    torch.set_float32_matmul_precision("medium")
    try:
        found = encoder.encode_queries(tiny.SENTENCES)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"ieee"}
    np.testing.assert_array_equal(found, expected)


def test_a_query_is_computed_on_one_thread_and_many_tokens_on_all(card: str) -> None:
    encoder = open_encoder(resolve_model(card), "cpu")
    before, threads = torch.get_num_threads(), []
    torch.set_num_threads(3)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda *_: threads.append(torch.get_num_threads())
    )
    try:
        encoder.encode_queries(["the cat"])
        assert set(threads) == {1}
        assert torch.get_num_threads() == 3
        threads.clear()
        encoder.encode_queries([f"the cat {number}" for number in range(40)])  # 1 batch
        assert set(threads) == {3}
    finally:
        hook.remove()
        torch.set_num_threads(before)
