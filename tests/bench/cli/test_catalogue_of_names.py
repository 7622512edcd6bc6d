"""What can be listed and shown, from declared facts only."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli.describe import describe, listing
from bench.cli.fact_page import page
from bench.cli.main import run_command
from bench.cli.model_list import HEADINGS, group_of, model_lines
from bench.evaluate.measures import parse_measure
from datasets_cfg.catalogue import dataset_names, suite_names
from foundation.errors import BenchError
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import card_names, load_card
from retrievers.models.model import resolve_model
from retrievers.models.parameters import count_parameters
from tests.support.collections import write_collection

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


@pytest.mark.parametrize(
    ("file", "content", "field"),
    [
        ("retrievers/models/cards/minilm.toml", "model card", "pooling"),
        ("retrievers/training/presets/pretrain/mlm.toml", "preset for pre-training", "objective"),
        ("retrievers/training/presets/finetune/dpr.toml", "preset for fine-tuning", "rounds"),
        ("bench/experiments/plans/objectives.toml", "ablation", "axes"),
    ],
)
def test_a_file_is_shown_as_what_it_holds(file, content, field):
    shown = describe(str(ROOT / file))
    assert shown["content"] == content
    assert shown[field]


@pytest.mark.parametrize("name", ["some.trec", ".", "", "nowhere/result.json"])
def test_what_holds_no_result_is_called_nothing(tmp_path, monkeypatch, name):
    (tmp_path / "some.trec").write_text("q1 Q0 d1 1 1.5 tag\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchError, match="nothing is called"):
        describe(name)


def test_an_own_suite_and_an_own_collection_are_shown(tmp_path, capsys):
    suite = tmp_path / "product.toml"
    suite.write_text('members = ["beir/scifact", "words"]\nweights = [2, 1]\n')
    shown = describe(str(suite))
    assert (shown["content"], shown["members"]) == ("suite", ("beir/scifact", "words"))
    assert printed(capsys, "show", str(suite)).splitlines()[0].split() == ["content", "suite"]
    facts = write_collection(tmp_path / "words") / "dataset.toml"
    facts.write_text('main_measure = "RR@10"\nexclude_self = true\n')
    shown = describe(str(facts))
    assert (shown["content"], shown["main_measure"]) == ("facts of a collection", "RR@10")
    assert shown["name"] == "words"


def test_a_wrong_field_of_a_file_is_answered_by_the_kind_that_it_is(tmp_path):
    suite = tmp_path / "product.toml"
    suite.write_text('title = "Product"\nmembers = ["beir/scifact"]\nweigths = [2]\n')
    with pytest.raises(BenchError, match="weigths") as error:
        describe(str(suite))
    assert "weights" in error.value.hint


@pytest.mark.parametrize(("name", "field"), [("dpr-small", "rounds"), ("objectives", "axes")])
def test_presets_and_grids_are_shown_by_name(name, field):
    assert describe(name)[field]


def test_an_unknown_name_is_refused_with_the_closest_one():
    with pytest.raises(BenchError, match="'beir/scifcat'") as error:
        describe("beir/scifcat")
    assert "beir/scifact" in error.value.hint
    with pytest.raises(BenchError) as error:
        describe("minilmm")
    assert "minilm" in error.value.hint


def printed(capsys, *words: str) -> str:
    assert run_command(words) == 0
    return capsys.readouterr().out


def test_models_are_listed_in_groups_by_what_it_takes_to_use_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    groups = {line.name: line.group for line in model_lines()}
    assert {groups[name] for name in ("minilm", "bm25", "hashing")} == {"ready"}
    assert groups["retromae"] == "download"
    assert groups["retromae-pretrained"] == groups["bert"] == "pretrained"
    assert groups["seed"] == "unpublished"
    text = printed(capsys, "list", "models")
    places = [text.index(heading) for heading in HEADINGS.values()]
    assert places == sorted(places)
    (line,) = [line.split() for line in text.splitlines() if line.startswith("  minilm ")]
    assert line == ["minilm", "23M", "384", "Apache-2.0", "all-MiniLM-L6-v2"]


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
    chosen = json.loads(printed(capsys, "list", "models", "--group", "pretrained", "--json"))
    assert {"bert", "roberta", "condenser"} <= {row["name"] for row in chosen}
    assert {row["group"] for row in chosen} == {"pretrained"}
    rows = json.loads(
        printed(capsys, "list", "models", "--match", "CONDENSER", "--licence", "apache", "--json")
    )
    assert {"condenser", "cocondenser-ft"} <= {row["name"] for row in rows}
    assert all("apache" in row["licence"].lower() for row in rows)
    with pytest.raises(BenchError, match="none of the models"):
        run_command(["list", "models", "--match", "no such text"])
    with pytest.raises(BenchError, match="licence 'gpl'") as error:
        run_command(["list", "models", "--licence", "gpl"])
    assert "Apache-2.0" in error.value.hint
    with pytest.raises(BenchError, match="choose among models"):
        run_command(["list", "datasets", "--group", "ready"])


def test_what_a_card_states_of_its_size_is_what_its_checkpoint_has():
    model, card = resolve_model("minilm"), load_card("minilm")
    assert count_parameters(model).total == card.parameters
    assert model.recipe.dim == card.dim


def test_presets_and_grids_are_listed_with_the_command_and_the_variants(capsys):
    presets, grids = printed(capsys, "list", "presets"), printed(capsys, "list", "grids")
    assert "pretrain: RetroMAE" in presets
    assert "finetune: RetroMAE on MS MARCO for BEIR" in presets
    assert "retromae-table6" in grids
    assert "variants: two-cores" in grids


@pytest.mark.parametrize("name", [*card_names(), *dataset_names(), *suite_names()])
def test_what_is_shown_fits_a_screen(name):
    lines = page(describe(name), f"python -m bench show {name} --all").splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines) <= 80 or "https://" in "".join(lines)
    assert lines[-1].endswith(f"show {name} --all")


def test_the_page_has_the_main_facts_first_and_the_rest_with_all(capsys):
    text = printed(capsys, "show", "minilm")
    assert text.splitlines()[0].split() == ["name", "minilm"]
    assert "52: beir/trec-covid nDCG@10 0.4723" in text
    assert "beir/cqadupstack/wordpress" not in text
    whole = printed(capsys, "show", "minilm", "--all")
    assert "beir/cqadupstack/wordpress, R@100, 0.72151" in whole
    assert len(whole.splitlines()) > 52


def test_how_to_obtain_a_licensed_collection_is_on_the_page(capsys):
    assert "Apply for TREC disks" in printed(capsys, "show", "beir/robust04")


def test_a_misspelt_value_is_answered_with_the_one_that_was_meant():
    with pytest.raises(BenchError, match='Did you mean "models"'):
        run_command(["list", "modles"])


def test_lists_of_declared_names_load_no_heavy_library():
    code = (
        "import sys; from bench.cli.describe import listing; "
        "names = 'models datasets suites indexes presets grids'.split(); "
        "[listing(what) for what in names]; "
        "print(sorted({'torch', 'transformers', 'faiss', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
