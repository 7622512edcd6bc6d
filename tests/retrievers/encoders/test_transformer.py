"""The encoder of transformer cards: order, batches, repeats, refusals, and the real MiniLM."""

import json
import pickle
import shutil
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


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "bert"
    tiny.write_bert(folder)
    return folder


@pytest.fixture
def opened(bert, tmp_path):
    """Opens an encoder of a checkpoint, by default the tiny BERT, with these fields of its card."""

    def open_card(checkpoint: Path = bert, settings: Any = None, device: str = "cpu", **fields):
        stated = {"checkpoint": str(checkpoint), "pooling": "mean", **fields}
        card = tiny.write_card(tmp_path / "tiny.toml", **stated)
        return open_encoder(resolve_model(str(card), ModelSettings(**settings or {})), device)

    return open_card


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
def test_token_types_are_fed_where_the_tokenizer_gives_them(given, opened, tmp_path):
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
    inputs = tokenizer([tiny.SENTENCES[0]], return_tensors="pt")
    assert ("token_type_ids" in inputs) == given
    with torch.inference_mode():
        expected = network(**inputs).last_hidden_state.mean(dim=1).numpy()
    found = opened(tmp_path / "gpt2").encode_queries([tiny.SENTENCES[0]])
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_documents_prepared_in_another_thread_give_the_same_bytes(opened):
    encoder = opened()
    expected = encoder.encode_documents(tiny.TITLES, tiny.SENTENCES)
    advanced: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        encode = pool.submit(encoder.prepare_documents, tiny.TITLES, tiny.SENTENCES).result()
    assert encode(advanced.append).tobytes() == expected.tobytes()
    assert sum(advanced) == len(tiny.SENTENCES)


def test_the_timer_splits_time_by_phase_and_counts_tokens_without_padding(opened):
    encoder = opened()
    other = encoder.for_dataset("beir/scifact")
    encoder.encode_documents(["", ""], ["alpha beta", "cloud"])
    other.encode_queries(["stone"])
    assert encoder.timer.counts == {"tokens": 4 + 3 + 3}
    assert set(encoder.timer.seconds) == {"load", "tokenise", "copy", "forward"}
    assert all(spent > 0 for spent in encoder.timer.seconds.values())


def test_equal_inputs_are_encoded_once_and_counted_each_time(opened):
    encoder, advanced = opened(), list[int]()
    vectors = encoder.encode_documents(
        ["alpha", "", "alpha", "alpha"], ["stone", "alpha stone", "stone", "cloud"], advanced.append
    )
    assert encoder.timer.counts["tokens"] == 4 + 4
    assert sum(advanced) == 4
    assert vectors[0].tobytes() == vectors[1].tobytes() == vectors[2].tobytes()
    assert vectors[3].tobytes() != vectors[0].tobytes()


def test_lengths_are_counted_before_they_are_cut(opened):
    encoder = opened(max_query_tokens=4)
    assert encoder.count_query_tokens(["alpha beta gamma delta", ""]) == [6, 2]
    assert encoder.count_document_tokens(["alpha", ""], ["beta " * 70, "beta"]) == [73, 3]


@pytest.mark.parametrize(("length", "join"), [(1, "space"), (2, "space"), (3, "pair")])
def test_a_length_without_room_for_a_text_is_refused(opened, length, join):
    encoder = opened(title_join=join, max_document_tokens=length)
    with pytest.raises(BenchError, match=f"{length} tokens leave none for a text") as caught:
        encoder.encode_documents(["alpha"], ["beta"])
    assert f"to {length + 1 if length > 1 else 3} or more" in caught.value.hint


def test_an_encoder_for_a_dataset_shares_the_weights_and_changes_the_prompt(opened):
    prompts = {"query": "alpha ", "datasets": {"beir/quora": {"query": ""}}}
    encoder = opened(prompts=prompts)
    quora = encoder.for_dataset("beir/quora")
    np.testing.assert_array_equal(
        encoder.encode_queries(["stone"]), quora.encode_queries(["alpha stone"])
    )
    assert quora.recipe.fingerprint != encoder.recipe.fingerprint


@pytest.fixture
def encode(opened):
    return lambda folder, **fields: opened(folder, **fields).encode_queries(tiny.SENTENCES)


@pytest.fixture
def damage(tmp_path):
    """Writes a pickle checkpoint whose state dict was changed, and returns its folder."""

    def write(change: Any = lambda state: None) -> Path:
        tiny.write_mlm_pickle(tmp_path / "damaged")
        path = tmp_path / "damaged" / "pytorch_model.bin"
        state = torch.load(path, weights_only=True)
        change(state)
        torch.save(state, path)
        return tmp_path / "damaged"

    return write


LAYER, TABLE = "bert.encoder.layer.1.output.dense", "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state: state.pop(f"{LAYER}.weight"), r"lacks 1 weights.*layer\.1\.output\.dense"),
        (lambda state: state.update({TABLE: torch.zeros(3, 32)}), "cannot be loaded|lacks"),
        (lambda state: state[f"{LAYER}.bias"].fill_(float("nan")), "NaN or infinity"),
    ],
)
def test_a_missing_or_wrong_weight_is_an_error(damage, encode, change, problem):
    with pytest.raises(BenchError, match=problem):
        encode(damage(change))


def test_a_missing_pooler_matters_only_if_it_is_used(damage, encode):
    folder = damage()
    assert np.isfinite(encode(folder, pooling="cls")).all()
    with pytest.raises(BenchError, match=r"pooler\.dense"):
        encode(folder, pooling="pooler")


def test_weights_that_nothing_reads_are_reported(damage, encode, caplog):
    extra = {"bert.encoder.layer.7.output.dense.weight": torch.zeros(2)}
    encode(damage(lambda state: state.update(extra)))
    assert "1 weights are not used" in caplog.text  # the head of masked-language modelling is none


@pytest.mark.parametrize("form", ["zip", "plain", "stage"])
def test_a_malicious_pickle_is_not_executed(tmp_path, damage, encode, form):
    folder, target, stages = damage(), tmp_path / "trapped", []
    path, trap = folder / "pytorch_model.bin", {"weight": tiny.Trap(target)}
    if form == "plain":
        path.write_bytes(pickle.dumps(trap, protocol=2))
    else:
        if form == "stage":
            settings = {"out_features": 8}
            settings["activation_function"] = "torch.nn.modules.linear.Identity"
            tiny.write_json(folder / "2_Dense" / "config.json", settings)
            path, stages = folder / "2_Dense" / path.name, [{"kind": "dense", "folder": "2_Dense"}]
        torch.save(trap, path)
    with pytest.raises(BenchError, match="cannot be loaded") as caught:
        encode(folder, stages=stages)
    assert not target.exists()
    assert "Nothing in it was executed" in caught.value.hint
    with suppress(RuntimeError):
        torch.load(path, weights_only=False)
    assert target.exists(), "the trap works where nothing stops it"


@pytest.mark.parametrize(
    ("sizes", "fields", "problem"),
    [
        (
            {},
            {"stages": [{"kind": "dense", "key": "embeddingHead", "width": 8}]},
            "no weights for the stage key:embeddingHead",
        ),
        ({"hidden_size": 16}, {"query_checkpoint": "other"}, "gave 16 dimensions, not 32"),
        ({"vocab_size": 20}, {"query_checkpoint": "other"}, "cannot be run: index out of range"),
    ],
    ids=["no stage", "another width", "unknown tokens"],
)
def test_a_checkpoint_that_does_not_fit_is_refused(opened, tmp_path, sizes, fields, problem):
    tiny.write_bert(tmp_path / "other", **sizes)
    with pytest.raises(BenchError, match=problem):
        opened(**fields).encode_queries(["zzz"])


def test_a_damaged_tokenizer_is_refused(damage, encode):
    folder = damage()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(BenchError, match=r"the tokenizer in .* cannot be loaded"):
        encode(folder)


def test_a_tokenizer_without_a_special_token_that_it_uses_is_refused_or_repaired(
    bert, tmp_path, encode
):
    path = shutil.copytree(bert, tmp_path / "bert") / "tokenizer.json"
    content = json.loads(path.read_text())
    del content["post_processor"]["special_tokens"]["[CLS]"]
    path.write_text(json.dumps(content))
    if transformers.__version__ < "5":
        with pytest.raises(BenchError, match=r"tokenizer in .* cannot be loaded"):
            encode(path.parent)
    else:  # adds the special tokens of a BERT itself
        np.testing.assert_array_equal(encode(path.parent), encode(bert))


def test_the_separator_rule_needs_a_separator_token(opened):
    encoder = opened(title_join="sep")
    encoder._towers.document.tokenizer.sep_token = None
    with pytest.raises(BenchError, match="no separator token"):
        encoder.encode_documents(["alpha"], ["beta"])


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "cuda:x"])
def test_a_missing_device_is_refused(opened, device):
    with pytest.raises(BenchError, match=device):
        opened(device=device).encode_queries(["alpha"])


def test_float16_needs_a_gpu_and_emulated_bfloat16_is_reported(
    opened, tmp_path, monkeypatch, caplog
):
    (tmp_path / "cpuinfo").write_text("flags : avx2 avx512f\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    with pytest.raises(BenchError, match="float16 needs a GPU"):
        opened(settings={"dtype": "float16"}).encode_queries(["alpha"])
    full = opened().encode_queries(["alpha"])
    assert "no bfloat16 instructions" not in caplog.text
    half = opened(settings={"dtype": "bfloat16"}).encode_queries(["alpha"])
    assert "no bfloat16 instructions" in caplog.text
    assert half.dtype == np.float32
    assert 0 < np.abs(half - full).max() < 0.1


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)
def test_float32_ignores_global_precision_switches_and_leaves_them(opened):
    encoder = opened()
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


def test_a_query_is_computed_on_one_thread_and_many_tokens_on_all(opened):
    encoder = opened()
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
