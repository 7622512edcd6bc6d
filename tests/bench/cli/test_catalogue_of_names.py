"""What can be listed and shown, from declared facts only."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli.describe import describe, listing
from bench.evaluate.measures import parse_measure
from datasets_cfg.catalogue import dataset_names, suite_names
from foundation.errors import BenchError
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import card_names, load_card

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("what", "names"),
    [("models", card_names), ("datasets", dataset_names), ("suites", suite_names)],
)
def test_every_declared_name_is_listed_once_with_a_line_about_it(what, names):
    rows = listing(what)
    assert sorted(name for name, _ in rows) == sorted(names())
    assert all(about and "\n" not in about for _, about in rows)


def test_every_listed_measure_is_understood():
    rows = listing("measures")
    assert {"nDCG@k", "R@k", "RR@k"} <= dict(rows).keys()
    for name, about in rows:
        parse_measure(name.replace("@k", "@10"))
        assert about


def test_every_listed_index_is_understood():
    rows = listing("indexes")
    assert rows[0][0] == "flat"
    for spec, about in rows:
        parsed = IndexSpec.parse(spec)
        assert IndexSpec.parse(str(parsed)) == parsed
        assert about


def test_a_model_that_cannot_be_used_says_so():
    lines = dict(listing("models"))
    missing = [name for name in card_names() if load_card(name).missing]
    assert missing
    assert all(load_card(name).missing in lines[name] for name in missing)
    assert "not available" not in lines["minilm"]


def test_what_is_unverified_is_said_in_the_list():
    lines = dict(listing("models"))
    unverified = [
        name for name in card_names() if load_card(name).unverified and not load_card(name).missing
    ]
    assert unverified
    assert all("unverified: " in lines[name] for name in unverified)


def test_a_licensed_collection_says_where_the_instructions_are():
    lines = dict(listing("datasets"))
    assert "licensed" in lines["beir/bioasq"]
    assert "licensed" not in lines["beir/scifact"]
    assert "5,183 documents; 300 queries" in lines["beir/scifact"]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("minilm", "pooling", "mean"),
        ("beir/scifact", "exclude_self", True),
        ("beir/cqadupstack", "mean", True),
    ],
)
def test_all_that_is_declared_of_a_name_is_shown(name, field, value):
    shown = describe(name)
    assert shown["name"] == name
    assert shown[field] == value


def test_an_unknown_name_is_refused_with_the_closest_one():
    with pytest.raises(BenchError, match="'beir/scifcat'") as error:
        describe("beir/scifcat")
    assert "beir/scifact" in error.value.hint
    with pytest.raises(BenchError) as error:
        describe("minilmm")
    assert "minilm" in error.value.hint


def test_a_folder_without_a_result_is_refused(tmp_path):
    with pytest.raises(BenchError, match="cannot read the result"):
        describe(str(tmp_path))


def test_lists_of_declared_names_load_no_heavy_library():
    code = (
        "import sys; from bench.cli.describe import listing; "
        "[listing(what) for what in ('models', 'datasets', 'suites', 'indexes')]; "
        "print(sorted({'torch', 'transformers', 'faiss', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
