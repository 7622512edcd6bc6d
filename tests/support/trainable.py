"""A collection of a few words that tiny checkpoints know, with judgements to train on."""

from pathlib import Path

from tests.support import tiny_checkpoints as tiny
from tests.support.collections import write_collection, write_qrels

WORDS = tiny.WORDS[:7]
DOCUMENTS = {
    f"d{n}": ("", f"{word} of the {word} and a {WORDS[n - 1]}") for n, word in enumerate(WORDS)
}
TRAINING = {f"q{n}": f"the {word}" for n, word in enumerate(WORDS)}
TESTED = {"t1": "a river", "t2": "Alpha and beta"}


def write_trainable(folder: Path) -> None:
    """A query to train on for each document, and two to test on."""
    test = {("t1", "d4"): 1, ("t2", "d0"): 1, ("t2", "d1"): 1}
    write_collection(folder, DOCUMENTS, TRAINING | TESTED, test)
    write_qrels(folder, {(f"q{n}", f"d{n}"): 1 for n in range(len(WORDS))}, "train")
