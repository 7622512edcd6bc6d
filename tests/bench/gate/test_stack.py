"""`check --stack`: each cause of other vectors is named, and equal environments are equal."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch_file

from bench.__main__ import main
from bench.gate import stack_probe
from bench.gate.check_record import Check
from bench.gate.stack import PROBE, Stack, judge_stacks, make_job, read_probe
from bench.requests.outcomes import ExitCode
from tests.support.collections import write_words
from tests.support.tiny_checkpoints import (
    seeded,
    write_bert,
    write_card,
    write_json,
    write_st_folder,
    write_tokenizer,
)

Change = Callable[[Path], None]
WEIGHTS = "model.safetensors"


def save_pooled(folder: Path) -> Path:
    write_st_folder(folder, prompts={"query": "", "document": ""})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 32})
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    return folder


def write_llama(folder: Path) -> None:
    """A network with rotary positions."""
    words = write_tokenizer(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(words), num_attention_heads=2, initializer_range=0.5, **sizes
    )
    seeded(lambda: transformers.LlamaModel(config)).save_pretrained(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Folders of sentence-transformers."""
    folder = tmp_path_factory.mktemp("models")
    write_bert(folder / "bert")
    write_llama(folder / "llama")
    return {name: save_pooled(folder / name) for name in ("bert", "llama")}


@pytest.fixture(scope="module")
def here(models, tmp_path_factory) -> dict[str, Stack]:
    """What the probe finds of each model in this environment."""
    place = tmp_path_factory.mktemp("probed")
    return {name: probe(folder, place) for name, folder in models.items()}


def probe(folder: Path, tmp_path: Path, tokens: Any = None) -> Stack:
    job, arrays = tmp_path / "job.json", tmp_path / "arrays.npz"
    write_json(job, make_job(folder, None, [], "cpu") | {"tokens": tokens})
    stack_probe.main(str(job), str(arrays))
    return read_probe(arrays)


def edit(name: str, **fields: Any) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        write_json(folder / name, content | fields)

    return change


def forget_words(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        word if word.startswith("[") else f"{word}-": number for word, number in words.items()
    }
    write_json(folder / "tokenizer.json", tokenizer)


# A change of the model's folder, and the cause that it must be called.
CAUSES: list[tuple[Change, str]] = [
    (
        edit("tokenizer.json", post_processor=None),
        r"special tokens: none around a text there, \[CLS\] \[SEP\] here",
    ),
    (forget_words, "unknown words: 100% of the tokens there, 3% here"),
    (edit("tokenizer_config.json", do_lower_case=False), "fixed texts have other token ids"),
    (
        edit("sentence_bert_config.json", model_args={"dtype": "bfloat16"}),
        "dtype: bfloat16 there, float32 here",
    ),
    (edit("config.json", is_decoder=True), "attention: causal there, bidirectional here"),
    (edit("sentence_bert_config.json", max_seq_length=8), "position limit: 8 there, 32 here"),
    (
        edit("1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True),
        "modules, 1, pooling_mode: cls there, mean here",
    ),
    (
        edit("config_sentence_transformers.json", prompts={"query": "the river of "}),
        "prompts, query: the river of  there, none here",
    ),
]


ROTARY = ("llama", edit("config.json", rope_theta=100.0), "rotary frequencies: ")


@pytest.mark.parametrize(
    ("name", "change", "cause"), [*(("bert", *each) for each in CAUSES), ROTARY]
)
def test_each_cause_of_other_vectors_is_named(models, here, tmp_path, name, change, cause):
    changed = shutil.copytree(models[name], tmp_path / "changed")
    change(changed)
    there = probe(changed, tmp_path, here[name].properties["whole"])
    found = judge_stacks("changed", here[name], there)
    assert found.outcome == "DRIFT"
    first, *others = map(str, found.reasons)
    assert re.search(cause, first)
    assert others[0].startswith("the largest difference")


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_equal_environments_are_equal(models, here, tmp_path, name):
    there = probe(models[name], tmp_path, here[name].properties["whole"])
    found = judge_stacks("same", here[name], there)
    assert found.outcome == "OK"
    assert [row.mean_a for row in found.rows] == [1.0] * 3


@pytest.mark.slow
def test_a_folder_without_a_transformer_is_refused(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    model = library.SentenceTransformer(modules=[parts.BoW(["river"])], device="cpu")
    model.save(str(tmp_path / "words"), create_model_card=False)
    with pytest.raises(SystemExit, match="it does not begin with a transformer"):
        probe(tmp_path / "words", tmp_path)


def test_code_of_a_folder_is_not_run(models, tmp_path, capsys):
    folder = tmp_path / "own"
    shutil.copytree(models["bert"], folder)
    (folder / "own.py").write_text("raise SystemExit('executed')")
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [*modules, {**modules[0], "type": "own.Module"}])
    assert main(["check", str(folder), "--stack", sys.executable]) == ExitCode.BAD_INPUT
    assert "names own.Module, and --stack runs no code" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_scores_a_collection_with_both_environments(bench, tmp_path):
    """A plain checkpoint, used as a card says."""
    write_bert(tmp_path / "plain")
    lengths = {"max_query_tokens": 16, "max_document_tokens": 16}
    card = write_card(tmp_path / "like.toml", checkpoint="plain", pooling="mean", **lengths)
    words, plain = write_words(tmp_path / "words"), ("--like", card, "--json")
    typed = ("check", tmp_path / "plain", "--stack", sys.executable, "--on", words, *plain)
    done = bench(*typed, "--cache-dir", bench.cache)
    assert done.code == ExitCode.OK, done.stderr
    *_, scored = json.loads(done.stdout)["rows"]
    assert scored["paired"]["ties"] == 25
    done = bench("run", words, "--limit", 25, "--model", tmp_path / "plain", *plain)
    run = json.loads(done.stdout)["results"][0]["measures"]
    assert scored["mean_a"] == pytest.approx(run[scored["measure"]], abs=1e-6)


@pytest.mark.slow
def test_what_transformers_5_changes_is_named(models, tmp_path):
    other = os.environ.get("BENCH_OTHER_PYTHON", "")
    if not other:
        pytest.skip("BENCH_OTHER_PYTHON does not name the Python of another environment")
    bert, llama = models["bert"], models["llama"]
    half = shutil.copytree(bert, tmp_path / "half")
    weights = {name: each.bfloat16() for name, each in load_file(half / WEIGHTS).items()}
    save_torch_file(weights, half / WEIGHTS, {"format": "pt"})
    edit("config.json", dtype="bfloat16")(half)  # version 4 loads float32, 5 what is stored
    changed = shutil.copytree(llama, tmp_path / "changed")  # fields that version 4 does not read
    rotary = {"rope_type": "default", "rope_theta": 100.0}
    edit("config.json", rope_parameters=rotary, is_causal=False)(changed)

    same, stored, read = check_in(other, [bert, half, changed], tmp_path)
    assert same.outcome == "OK"
    assert f"here: transformers {transformers.__version__}" in " ".join(map(str, same.reasons))
    assert "dtype: bfloat16 there, float32 here" in map(str, stored.reasons)
    reasons = [str(reason) for reason in read.reasons]
    assert any(reason.startswith("rotary frequencies: ") for reason in reasons)
    assert "attention: bidirectional there, causal here" in reasons


# The probe, which has one job in a process, with several: the libraries are imported once.
PROBES = """
import sys
sys.path[0] = sys.argv[1]
from stack_probe import main
for folder in sys.argv[2:]:
    main(f"{folder}/job.json", f"{folder}/arrays.npz")
"""


def check_in(python: str, models: list[Path], tmp_path: Path) -> list[Check]:
    """Compare this environment with that of ``python``, for each model."""
    stacks, folders = [], [tmp_path / f"{number} there" for number in range(len(models))]
    for model, folder in zip(models, folders, strict=True):
        folder.mkdir()
        stacks.append(probe(model, tmp_path))
        job = make_job(model, None, [], "cpu") | {"tokens": stacks[-1].properties["whole"]}
        write_json(folder / "job.json", job)
    subprocess.run([python, "-c", PROBES, PROBE.parent, *folders], check=True)
    return [
        judge_stacks("there", here, read_probe(folder / "arrays.npz"))
        for here, folder in zip(stacks, folders, strict=True)
    ]
