"""A collection of six documents: ties, a judged document that is missing, a query among them."""

import json
from collections.abc import Sequence
from pathlib import Path

DOCUMENTS = {
    "d1": ("Wings", "the lift of a wing grows with the angle of attack"),
    "d2": ("", "transition in the boundary layer of a swept wing"),
    "d10": ("Heat", "slabs that conduct heat"),
    "d9": ("Heat", "slabs that conduct heat"),
    "q3": ("", "heat conduction in a slab of metal"),
    "é": ("Flügel", "Auftrieb eines Flügels"),
}
QUERIES = {
    "q1": "lift of a wing",
    "q2": "slabs that conduct heat",
    "q3": "heat conduction",
    "q4": "never judged",
}
QRELS = {
    ("q1", "d1"): 2,
    ("q1", "d2"): 1,
    ("q1", "not-here"): 1,
    ("q2", "d9"): 1,
    ("q2", "d1"): -1,
    ("q3", "d10"): 1,
    ("q3", "q3"): 1,
}
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
    """The collection above in BEIR's layout."""
    rows = [{"_id": name, "title": t, "text": text} for name, (t, text) in DOCUMENTS.items()]
    questions = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    write_lines(folder / "corpus.jsonl", [json.dumps(row, ensure_ascii=False) for row in rows])
    write_lines(folder / "queries.jsonl", [json.dumps(row) for row in questions])
    judged = [f"{query}\t{document}\t{grade}" for (query, document), grade in QRELS.items()]
    write_lines(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *judged])
    (folder / "dataset.toml").write_text(facts, encoding="utf-8")
