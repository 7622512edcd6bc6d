"""A training belongs to the content of everything that it starts from, and records it."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from bench.requests.outcomes import ExitCode
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench
from tests.support.trainable import FINETUNING, PRETRAINING, write_trainable

pytest.importorskip("adapters", exc_type=ImportError)
pytestmark = pytest.mark.slow

SCRATCH = """scratch = { tokenizer = "./bert", layers = 1, width = 8, heads = 2, intermediate = 8, \
positions = 16 }"""
DISTILLATION = """
[loss]
name = "kl"
[teacher]
start = "./cross"
batch_size = 2
max_tokens = 16
"""
ADAPTER = '[adapter]\nmethod = "seq_bn"\n'
OBJECTIVE = """
from retrievers.training.objectives.mlm import MLM

class Masked(MLM, kw_only=True):
    weight: float = 1.0
"""
METHOD = """
from retrievers.training.continual.methods import Plain

class Careful(Plain, kw_only=True):
    care: float = 1.0
"""
NEGATIVES = [
    {"qid": f"q{n}", "pos": [f"d{n}"], "neg": {"bm25": [f"d{(n + 3) % 7}"]}} for n in range(7)
]
PLACES = ("--device", "cpu", "--cache-dir", "cache")
PRETRAIN = ("--on", "./mine", *PLACES)
FINETUNE = (*PRETRAIN, "--model", "start.toml")
ADAPT = ("adapt", "texts.toml", "--on", "./mine", "./other", *PLACES, "--start", "start.toml")
COMPOSE = ("one", "two", "--cache-dir", "cache")
SPLIT = tuple(
    f"mine/{name}" for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "dataset.toml")
)
TEXTS = ("mine/corpus.jsonl", "other/corpus.jsonl")
HEADS = ("before/model.safetensors", "before/*token*.json", "before/config.json", "before/heads/*")
ADAPTERS = (
    "one/card.toml",
    "[ot][nw][eo]/adapter/*.safetensors",
    "[ot][nw][eo]/adapter/adapter*.json",
)
# Commands, and the files that they read.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pretrain": (
        ("pretrain", "texts.toml", *PRETRAIN, "--objective", "own.py", "--start", "./before"),
        (*HEADS, "before/vocab.txt", "mine/corpus.jsonl", "own.py"),
    ),
    "pretrain from scratch": (
        ("pretrain", "scratch.toml", *PRETRAIN),
        ("bert/*", "mine/corpus.jsonl"),
    ),
    "finetune": (("finetune", "tiny.toml", *FINETUNE), ("bert/*", "start.toml", *SPLIT)),
    "finetune with a teacher": (
        ("finetune", "distil.toml", *FINETUNE),
        ("bert/*", "cross/*", "start.toml", *SPLIT),
    ),
    "finetune with negatives": (
        ("finetune", "tiny.toml", *FINETUNE, "--negatives", "hard.jsonl"),
        ("hard.jsonl", "bert/*", "start.toml", *SPLIT),
    ),
    "adapt": (
        (*ADAPT, "--method", "careful.py"),
        ("bert/*", "start.toml", "careful.py", "adapt/adapt-1-mine/heads/*", *TEXTS),
    ),
    "adapt with adapters": ((*ADAPT, "--method", "adapter"), ("bert/*", "start.toml", *TEXTS)),
    "compose average": (("compose", "average", *COMPOSE), ("bert/config.json", *ADAPTERS)),
    "compose route": (
        ("compose", "route", *COMPOSE, "--on", "./mine", "./other"),
        (*ADAPTERS, *SPLIT, *(name.replace("mine", "other") for name in SPLIT)),
    ),
}
SHIPPED = ("mlm.py", "methods.py", "retrievers.")  # code of the program, which no user edits


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[Bench]:
    """Everything that trainings of all kinds start from."""
    folder = tmp_path_factory.mktemp("world")
    for name in ("mine", "other"):
        write_trainable(folder / name)
        (folder / name / "dataset.toml").write_text("exclude_self = false\n")
    for number, name in enumerate(("bert", "cross")):
        tiny.write_bert(folder / name, seed=number)
    tiny.write_card(folder / "start.toml", checkpoint="bert", pooling="mean")
    (folder / "own.py").write_text(OBJECTIVE)
    (folder / "careful.py").write_text(METHOD)
    (folder / "hard.jsonl").write_text("".join(json.dumps(each) + "\n" for each in NEGATIVES))
    (folder / "texts.toml").write_text(PRETRAINING)
    scratch = PRETRAINING.replace('start.model = "./bert"', f"start.{SCRATCH}")
    (folder / "scratch.toml").write_text(scratch)
    (folder / "tiny.toml").write_text(FINETUNING)
    (folder / "distil.toml").write_text(FINETUNING + DISTILLATION)
    (folder / "adapter.toml").write_text(FINETUNING + ADAPTER)
    bench = Bench(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        train(bench, "before", ("pretrain", "texts.toml", *PRETRAIN))
        for name in ("one", "two"):
            train(bench, name, ("finetune", "adapter.toml", *FINETUNE))
        yield bench


def train(bench: Bench, out: str, command: tuple[str, ...]) -> str:
    done = bench(*command, "--out", out)
    assert done.code == ExitCode.OK, done.stderr
    return done.stdout


def edit(path: Path) -> None:
    """Change a file so that it can still be read."""
    if path.suffix == ".safetensors":
        tensors = load_file(path)
        tensors[min(tensors)] = tensors[min(tensors)] + 1
        save_file(tensors, path, metadata={"format": "pt"})
        return
    added = {".py": "# edited\n", ".tsv": "q0\td1\t1\n", ".txt": "zeta\n", ".json": "\n"}
    text = path.read_text()
    if path.name == "corpus.jsonl":  # a document that nobody judged
        text += json.dumps({"_id": "x", "title": "", "text": "a river"}) + "\n"
    text = text.replace('"mean"', '"cls"').replace('["d3"]', '["d2"]')
    text = text.replace("exclude_self = false", "exclude_self = true")
    text = text.replace("the alpha", "of alpha") if path.name == "queries.jsonl" else text
    path.write_text(text + added.get(path.suffix, ""))


def flatten(table: Mapping[str, object], above: str) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}.{name}")
        else:
            yield f"{above}.{name}"


def listed_inputs(out: Path) -> set[str]:
    """Names of everything that the identities in a folder have hashes of."""
    found = set()
    for path in out.rglob("training.json"):
        record = json.loads(path.read_text())
        for part in ("start", "data", "code"):
            found |= {*flatten(record.get(part, {}), part)}
    return {name for name in found if not any(part in name for part in SHIPPED)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_is_not_reused_if_any_file_that_it_read_changed(world, kind):
    command, reads = KINDS[kind]
    out = kind.replace(" ", "-")
    assert "found" not in train(world, out, command)
    again = train(world, out, command)
    assert f"found {out}" in again
    assert "made by an earlier call" in again
    unnoticed, named = [], set[str]()
    for path in sorted({path for glob in reads for path in world.place.glob(glob)}):
        content = path.read_bytes()
        edit(path)
        assert path.read_bytes() != content, path
        done = world(*command, "--out", out)
        path.write_bytes(content)
        if done.code != ExitCode.BAD_INPUT or "holds a different training: " not in done.stderr:
            unnoticed.append((path.relative_to(world.place), done))
            continue
        problem = done.stderr.partition("different training: ")[2].partition(" changed\n")[0]
        named |= {*problem.split(", ")}
    assert unnoticed == []
    assert listed_inputs(world.place / out) - named == set()  # no hash that nothing changes
    assert f"found {out}" in train(world, out, command)


def test_the_record_says_where_and_how_long_and_the_evaluation_links_to_it(world):
    train(world, "m", ("finetune", "tiny.toml", *FINETUNE))
    path = world.place / "m" / "training.json"
    record = json.loads(path.read_text())
    weights = (world.place / "m/model.safetensors").read_bytes()
    assert record["weights"] == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    assert record["seconds"] > 0
    assert {"torch", "transformers", "sentence-transformers"} <= {
        *record["conditions"]["libraries"]
    }
    assert {"time", "commit", "machine", "threads"} <= {*record["conditions"]}
    for model, linked in (("m", hashlib.sha256(path.read_bytes()).hexdigest()), ("start.toml", "")):
        done = world("run", "./mine", "--model", model, "--cache-dir", "cache", "--json")
        (result,) = json.loads(done.stdout)["results"]
        assert result["training"] == linked
