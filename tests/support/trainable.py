"""A collection of a few words that tiny checkpoints know, with judgements and presets."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support import tiny_checkpoints as tiny
from tests.support.collections import write_collection, write_qrels

WORDS = tiny.WORDS[:7]
DOCUMENTS = {
    f"d{n}": ("", f"{word} of the {word} and a {WORDS[n - 1]}") for n, word in enumerate(WORDS)
}
TRAINING = {f"q{n}": f"the {word}" for n, word in enumerate(WORDS)}
TESTED = {"t1": "a river", "t2": "Alpha and beta"}
PRETRAINING = """
title = "tiny"
batch_size = 2
max_tokens = 12
steps = 2
start.model = "./bert"
objective.name = "mlm"
"""
FINETUNING = """
title = "tiny"
steps = 2
batch_size = 3
hard_negatives = 1
[[rounds]]
sources = ["bm25"]
depth = 5
[optimizer]
lr = 1e-3
"""


def write_trainable(folder: Path) -> None:
    """A query to train on for each document, and two to test on."""
    test = {("t1", "d4"): 1, ("t2", "d0"): 1, ("t2", "d1"): 1}
    write_collection(folder, DOCUMENTS, TRAINING | TESTED, test)
    write_qrels(folder, {(f"q{n}", f"d{n}"): 1 for n in range(len(WORDS))}, "train")


def write_training(folder: Path) -> None:
    """The collection ``mine``, an encoder with a card ``start.toml``, and presets."""
    write_trainable(folder / "mine")
    tiny.write_bert(folder / "bert")
    tiny.write_card(folder / "start.toml", checkpoint="bert", pooling="mean")
    (folder / "texts.toml").write_text(PRETRAINING)
    (folder / "tiny.toml").write_text(FINETUNING)


TEXTS = [text for _, text in DOCUMENTS.values()]
DISTILLING = FINETUNING + '[loss]\nname = "kl"\n[teacher]\nmodel = "nowhere"\n'
RECORDS = [  # in the layout of FlagEmbedding
    {
        "query": query,
        "pos": [TEXTS[number]],
        "neg": [TEXTS[number - 1], TEXTS[number - 2]],
        "pos_scores": [9.0],
        "neg_scores": [1.0, -2.5],
    }
    for number, query in enumerate(TRAINING.values())
]


def write_lines(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """JSON, a line each."""
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def write_training_files(folder: Path) -> None:
    """Files of other programs to train on, sound ones and others."""
    folder.mkdir(exist_ok=True)
    (folder / "distil.toml").write_text(DISTILLING)
    write_lines(folder / "train.jsonl", RECORDS)
    bare = [{key: record[key] for key in ("query", "pos", "neg")} for record in RECORDS]
    write_lines(folder / "bare.jsonl", bare)
    write_lines(folder / "bad.jsonl", [{"query": "q", "pos": ["p"]}, {"query": "q"}])
    (folder / "empty.jsonl").touch()
    triples = [f"q{number}\td{number}\td{(number + 1) % 7}\n" for number in range(5)]
    (folder / "triples.tsv").write_text("".join(triples))
    (folder / "other.tsv").write_text("17\t18\t19\n")
