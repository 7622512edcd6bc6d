"""Tables and the page of a leaderboard: what is shown, what is marked, what a name cannot break."""

import base64
import csv
import hashlib
import io
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.result_record import Timings
from datasets_cfg.catalogue import expand_names
from reports.leaderboard import SITE, markdown, page, scores, script_json
from retrievers.models.card import Card, ExpectedScore
from retrievers.models.checkpoint import Parameters
from tests.support.leaderboards import MEASURE, board_of, make_protocol, recipe_of, store
from tests.support.markdown import tables_of

FORUMS = expand_names(["beir/cqadupstack"])
CLAIM = ExpectedScore(dataset="beir/scifact", measure=MEASURE, value=0.625, source="a paper")


def test_the_ranking_shows_groups_intervals_and_marks_what_was_trained_on(tmp_path):
    store(tmp_path, "worse", "set", [0.0] * 30 + [0.5] * 30)
    store(tmp_path, "better", "set", [0.5] * 60, in_domain=True)
    ranking = tables_of(markdown(board_of(tmp_path), ""))[0]
    assert [row["model"] for row in ranking] == ["better", "worse"]
    assert [row["group"] for row in ranking] == ["1", "2"]
    assert [row[f"set {MEASURE}"] for row in ranking] == ["0.5000*", "0.2500"]
    assert ranking[0]["95 % interval"] == "0.500–0.500"


def test_a_mean_is_shown_next_to_its_zero_shot_mean_or_as_a_gap(tmp_path):
    for number, name in enumerate(FORUMS):
        store(tmp_path, "whole", name, [number / 12], in_domain=number == 0)
        store(tmp_path, "unseen", name, [0.125])
        if number:
            store(tmp_path, "partly", name, [0.5])
    ranking = {row["model"]: row for row in tables_of(markdown(board_of(tmp_path), ""))[0]}
    shown = f"beir/cqadupstack {MEASURE}"
    assert ranking["whole"][shown] == "0.4583*"
    assert ranking["whole"]["zero-shot"] == "0.5000 (11)"
    assert ranking["unseen"]["zero-shot"] == "0.1250 (12)"
    assert (ranking["partly"][shown], ranking["partly"]["zero-shot"]) == ("1 of 12 missing", "")
    assert ranking["partly"]["group"] == ""


def test_recipes_and_speed_have_their_own_table(tmp_path):
    spent = Timings(encode_documents_s=2.0, encoded_tokens=3000)
    recipe = recipe_of("a", max_document_tokens=128, dtype="bfloat16")
    known = {"timings": spent, "parameters": Parameters(22_713_216)}
    store(tmp_path, "a", "set", [0.5], recipe=recipe, judged_at_10=0.5, **known)
    (row,) = tables_of(markdown(board_of(tmp_path), ""))[1]
    assert row == {
        "model": "a",
        "pooling": "mean",
        "max_query_tokens": "512",
        "max_document_tokens": "128",
        "dtype": "bfloat16",
        "store_dtype": "float32",
        "precision": "float32",
        "index": "flat",
        "parameters": "22.7 M",
        "bytes per document": "1,536",
        "lowest judged@10": "0.5000",
        "tokens/s": "1,500",
        "machine": "Linux x86_64, cpu, 2 cores available",
    }


def test_parameters_of_an_adapter_are_shown_and_unknown_ones_are_a_gap(tmp_path):
    store(tmp_path, "adapted", "set", [0.5], parameters=Parameters(110_077_440, 595_200))
    store(tmp_path, "theirs", "set", [0.25], recipe=None, index="")
    shown = {row["model"]: row for row in tables_of(markdown(board_of(tmp_path), ""))[1]}
    assert shown["adapted"]["parameters"] == "110.1 M"
    assert shown["adapted"]["adapter parameters"] == "595.2 k"
    assert (shown["theirs"]["parameters"], shown["theirs"]["adapter parameters"]) == ("unknown", "")


def test_protocols_have_their_own_table_and_unofficial_ones_are_marked(tmp_path):
    store(tmp_path, "a", "msmarco/dev", [0.5])
    store(tmp_path, "a", "mine", [0.5], protocol=make_protocol("mine", official=False))
    mine, msmarco = tables_of(markdown(board_of(tmp_path), ""))[2]
    assert mine["collection"] == "mine (not the published one)"
    assert (mine["queries"], mine["documents"], mine["depth"]) == ("1", "100", "1000")
    assert (msmarco["title_track"], msmarco["exclude_self"]) == ("no-title", "False")


def test_published_scores_are_called_claims_and_compared(tmp_path):
    store(tmp_path, "a", "beir/scifact", [0.5])
    card = Card(name="a", title="A", missing="x", expected=(CLAIM,))
    text = markdown(board_of(tmp_path, cards={"a": card}), "")
    (row,) = tables_of(text)[3]
    assert "Published scores, as printed" in text
    assert (row["measured"], row["published"], row["difference"]) == ("0.5000", "0.6250", "-0.1250")
    assert row["source"] == "a paper"


def test_published_systems_have_their_own_table_with_average_and_source(tmp_path):
    store(tmp_path, "a", "beir/scifact", [0.5, 0.5])
    board = board_of(tmp_path, published=("dupmae", "openmatch"))
    shown = {row["published system"]: row for row in tables_of(markdown(board, ""))[-1]}
    own = shown["DupMAE"]
    assert own[f"beir-18 {MEASURE} (mean of 18)"] == "0.4750"
    assert own[f"beir/scifact {MEASURE}"] == "0.6990"
    assert own["source"] == "https://arxiv.org/abs/2211.08769"
    assert "GTR-base (copied)" in shown
    assert "misprint" in markdown(board, "")
    ranking = tables_of(markdown(board, ""))[0]
    assert [row["model"] for row in ranking] == ["a"]
    assert ranking[0][f"beir-18 {MEASURE}"] == "17 of 18 missing"
    assert "published system" not in markdown(board_of(tmp_path), "")


def test_csv_marks_claims(tmp_path):
    store(tmp_path, "a", "beir/scifact", [0.5])
    board = board_of(tmp_path, published=("dupmae",))
    lines = list(csv.DictReader(io.StringIO(scores(board, "").csv())))
    values = {one["model"]: one[f"beir/scifact {MEASURE}"] for one in lines}
    assert (values["a"], values["DupMAE (published)"]) == ("0.5", "0.699")
    assert "BM25 (copied) (published)" in values


def test_another_measure_is_shown_where_it_was_measured(tmp_path):
    store(tmp_path, "a", "one", {MEASURE: [0.5], "R@100": [0.75]})
    store(tmp_path, "a", "two", [0.5])
    (row,) = tables_of(markdown(board_of(tmp_path, measure="R@100"), "R@100"))[0]
    assert (row["one R@100"], row["two R@100"]) == ("0.7500", "")


def test_the_page_allows_its_own_scripts_and_style_and_nothing_else(tmp_path):
    store(tmp_path, "a", "beir/scifact", [0.5])
    text = page(board_of(tmp_path), "")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    inline = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", text, re.DOTALL)
    allowed = {word for rule in rules.values() for word in rule.split()}
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inline]
    assert allowed == {"'none'", "data:", *(f"'sha256-{one}'" for one in hashes)}
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert text.isascii()


def test_the_scripts_never_set_markup_fetch_or_evaluate():
    for script in (path for path in SITE.iterdir() if path.name.endswith(".js")):
        code = script.read_text(encoding="utf-8")
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\("
        assert not re.search(forbidden + r"|fetch\(|XMLHttpRequest|import\(", code), script.name


@given(st.recursive(st.text() | st.integers(-9, 9), lambda inner: st.lists(inner)))
def test_data_in_html_cannot_close_their_element_and_are_read_back_unchanged(value):
    text = script_json(value)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value
