"""What can be listed and shown, from declared metadata only."""

import json
from pathlib import Path
from typing import get_args

import pytest

from bench.cli.commands.names import ModelGroup, describe, group_of, list_lines
from bench.cli.main import run_command
from bench.evaluation.scoring import parse_measure
from datasets_cfg.catalogue import dataset_names, suite_names
from foundation.errors import BenchError
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import card_names, load_card
from retrievers.models.resolve import count_parameters, resolve_model

ROOT = Path(__file__).resolve().parents[3]


def printed(capsys, *words: str) -> str:
    assert run_command(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "names"),
    [("models", card_names), ("datasets", dataset_names), ("suites", suite_names)],
)
def test_every_declared_name_is_listed_once_with_a_line_about_it(what, names, capsys):
    rows = json.loads(printed(capsys, "list", what, "--json"))
    assert sorted(row["name"] for row in rows) == sorted(names())
    assert all(row["about"] and "\n" not in row["about"] for row in rows)
    lines = printed(capsys, "list", what).splitlines()
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]


def test_every_listed_measure_and_index_is_understood():
    names = [line.name for line in list_lines("measures")]
    assert {"nDCG@k", "R@k", "RR@k"} <= {*names}
    for name in names:
        parse_measure(name.replace("@k", "@10"))
    specs = [line.name for line in list_lines("indexes")]
    assert specs[0] == "flat"
    for spec in specs:
        assert IndexSpec.parse(str(IndexSpec.parse(spec))) == IndexSpec.parse(spec)


def test_names_that_show_prints_are_unique():
    names = [
        line.name
        for what in ("models", "datasets", "suites", "presets", "grids")
        for line in list_lines(what)
    ]
    assert [name for name in names if names.count(name) > 1] == []


SHOWN = [
    ("minilm", "pooling", "mean"),
    ("beir/scifact", "exclude_self", True),
    ("beir/cqadupstack", "mean", True),
    ("dpr-small", "rounds", None),
    ("objectives", "axes", None),
]


@pytest.mark.parametrize(("name", "field", "value"), SHOWN)
def test_show_prints_what_is_declared_for_a_name(name, field, value, capsys):
    record = json.loads(printed(capsys, "show", name, "--json"))
    assert record[field] == value if value is not None else record[field]
    assert field in printed(capsys, "show", name)


def test_a_user_suite_is_shown(tmp_path, capsys):
    suite = tmp_path / "product.toml"
    suite.write_text('members = ["beir/scifact", "words"]\nweights = [2, 1]\n')
    assert json.loads(printed(capsys, "show", str(suite)))["weights"] == [2, 1]
    suite.write_text('title = "Product"\nmembers = ["beir/scifact"]\nweigths = [2]\n')
    with pytest.raises(BenchError, match="weigths") as error:
        describe(str(suite))
    assert "weights" in error.value.hint


def test_models_are_listed_in_groups_by_what_it_takes_to_use_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    lines = list(list_lines("models"))
    groups = {line.name: line.group for line in lines}
    assert {groups[name] for name in ("minilm", "bm25", "hashing")} == {"ready"}
    assert groups["retromae"] == "download"
    assert groups["retromae-pretrained"] == groups["bert"] == "pretrained"
    order = [get_args(ModelGroup).index(line.group) for line in lines]
    assert order == sorted(order)
    rows = [line.split() for line in printed(capsys, "list", "models").splitlines()]
    (row,) = [row for row in rows if row[0] == "minilm"]
    assert row == ["minilm", "ready", "23M", "384", "Apache-2.0", "all-MiniLM-L6-v2"]


def test_a_model_in_the_cache_of_the_hub_is_ready(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--Shitao--RetroMAE_BEIR"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert group_of(load_card("retromae")) == "download"  # a snapshot without weights
    (snapshot / "pytorch_model.bin").write_bytes(b"weights")
    assert group_of(load_card("retromae")) == "ready"


def test_models_are_chosen_by_group_text_and_licence(capsys):
    chosen = json.loads(printed(capsys, "list", "models", "--match", "pretrained", "--json"))
    assert {"bert", "roberta", "condenser"} <= {row["name"] for row in chosen}
    rows = json.loads(printed(capsys, "list", "models", "--match", "APACHE", "--json"))
    assert "minilm" in {row["name"] for row in rows}


def test_the_size_in_a_card_is_that_of_its_checkpoint():
    model, card = resolve_model("minilm"), load_card("minilm")
    assert count_parameters(model).total == card.parameters
    assert model.recipe.dim == card.dim
