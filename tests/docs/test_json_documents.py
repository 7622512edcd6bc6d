"""The reference states exactly what each command prints with ``--json``."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.cli.command_table import COMMANDS
from bench.experiments.grid import Axis, load_grid
from retrievers.encoders.views import View
from retrievers.training.preset import MarginMSE, Optimizer
from tests.docs.test_documentation import ROOT
from tests.support.collections import write_collection

sys.path.insert(0, str(ROOT / "docs"))

import generate
from generate import COMMITTED, DOCUMENTS, FIELD_RECORDS, grids, json_documents


@pytest.fixture
def tiny(bench, tmp_path):
    """A collection with results of two models."""
    folder = write_collection(tmp_path / "tiny")
    assert bench("run", folder, "--model", "hashing", "bm25").code == 0
    return folder


def check(document: Any, kind: Any) -> None:
    """Read a document as what the reference says, and write it again."""
    if isinstance(kind, dict):
        assert document.keys() == kind.keys()
        for key, inner in kind.items():
            check(document[key], inner)
    else:
        read = msgspec.convert(document, kind)
        assert json.loads(msgspec.json.encode(read)) == document


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("run", ("{suite}", "--model", "hashing")),
        ("work", ("{tiny}", "--model", "hashing")),
        ("score", ("{run}", "--dataset", "{tiny}")),
        ("index", ("{tiny}", "--model", "hashing", "--index", "Flat", "--out", "{out}/index")),
        ("compare", ("hashing", "bm25", "--changed", "1", "--results", "{out}")),
        ("check", ("hashing", "--baseline", "bm25", "--on", "{tiny}", "--results", "{out}")),
        ("cutoff", ("hashing", "--on", "{tiny}", "--like-cutoff", "bm25=1")),
        ("tune", ("hashing", "bm25", "--on", "{tiny}", "--results", "{out}")),
        ("leaderboard", ("--results", "{out}")),
        ("list", ("grids",)),
        ("list models", ()),
        ("fetch", ("{tiny}",)),
        ("verify", ("{tiny}",)),
        ("cache", ()),
        ("export", ("hashing", "--results", "{out}", "--out", "{out}/exported")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_document_of_a_command_is_the_one_of_the_reference(bench, tiny, command, arguments):
    run_file = next(bench.out.glob("tiny/hashing/*/run.arrow"))
    suite = tiny.parent / "suite.toml"
    suite.write_text('members = ["tiny"]')
    places = {"tiny": tiny, "suite": suite, "run": run_file, "out": bench.out}
    done = bench(*command.split(), *(word.format(**places) for word in arguments), "--json")
    document = json.loads(done.stdout)
    if command == "run":
        assert [mean["model"] for mean in document["means"]] == ["hashing"] * len(document["means"])
    check(document, DOCUMENTS[command])


def test_the_reference_has_the_document_of_every_command():
    assert {name.split()[0] for name in DOCUMENTS} == COMMANDS.keys()
    assert {"## Result\n", "## SuiteMean\n"} <= set(json_documents().splitlines(keepends=True))


def test_the_page_of_grids_has_an_example_that_is_one(tmp_path):
    (tmp_path / "example.toml").write_text(grids().split("```toml\n")[1].split("```")[0])
    assert load_grid(str(tmp_path / "example.toml")).name == "masks"


def test_the_committed_page_has_every_field_of_presets_grids_and_views():
    folder = Path(generate.__file__).parent / "reference"
    for name, make in COMMITTED.items():
        page = make()
        assert (folder / f"{name}.md").read_text() == page, "run `tox -e docs` and commit the page"
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    for record in (*FIELD_RECORDS, View, Optimizer, MarginMSE, Axis):
        for field in msgspec.structs.fields(record):
            row = rf"^\| `{field.name}` \| .+ \| .+ \| \S.* \|$"
            assert re.search(row, sections[record.__name__], re.MULTILINE), field.name
