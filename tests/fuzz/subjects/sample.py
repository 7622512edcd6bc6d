"""Facts and files of the collection that is mutated, the one of `tests.support.collections`."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.collections import write_collection

FACTS = """\
name = "own"
title = "Wings"
version = "1"
split = "test"
main_measure = "nDCG@10"
measures = ["R@100", "RR@10", "AP"]
depth = 1000
exclude_self = true
"""


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """A text file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_beir(folder: Path, facts: str = FACTS) -> None:
    """The collection in BEIR's layout."""
    write_collection(folder, facts=facts)
