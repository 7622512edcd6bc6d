"""The files of the site: names of pages, data that cannot leave their script, nothing deleted."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.boards.assembly import Choice, assemble
from bench.boards.rows import results_in
from bench.comparing.statistics import Resampling
from reports.pages import SITE, script_json, slugs, write_site
from tests.support.leaderboards import MEASURE, script_data, store

CONTENT = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]+)"')


def written(results: Path, site: Path) -> Path:
    choice = Choice(every_measure=True)
    board = assemble(results_in(results), {}, choice, Resampling(resamples=99))
    return write_site(board, site)


@pytest.fixture
def site(tmp_path) -> Path:
    store(tmp_path / "results", "a", "beir/scifact", {MEASURE: [0.5, 0.25], "R@100": [1.0, 0.5]})
    store(tmp_path / "results", "b/c", "beir/fiqa", [0.125], in_domain=True)
    return written(tmp_path / "results", tmp_path / "site").parent


def test_there_is_a_page_for_each_model_and_each_collection(site):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert pages == {
        "index.html",
        "models/a.html",
        "models/b-c.html",
        "collections/beir-scifact.html",
        "collections/beir-fiqa.html",
    }


def test_a_pair_has_a_page_with_its_differences(tmp_path):
    for model, scores in (("a", [0.5, 0.75]), ("b", [0.25, 0.25])):
        store(tmp_path / "results", model, "set", scores)
    choice = Choice(neighbours=True)
    board = assemble(results_in(tmp_path / "results"), {}, choice, Resampling(resamples=99))
    site = write_site(board, tmp_path / "site").parent
    assert (site / "pairs" / "a-b.html").is_file()
    (line,) = script_data(site / "pairs" / "a-b.js")["versus"]
    place, measure, difference, _, _, p, corrected, wins, ties, losses, _ = line
    assert (place, measure, difference) == (0, MEASURE, 0.375)
    assert (p, corrected, wins, ties, losses) == (0.5, 0.5, 2, 0, 0)


def test_every_file_that_a_page_names_is_there_and_is_named_relatively(site):
    for page in site.rglob("*.html"):
        named = re.findall(r'(?:src|href)="([^"#][^"]*)"', page.read_text())
        files = [name for name in named if not name.startswith("data:")]
        assert len(files) > 4
        assert [name for name in files if not (page.parent / name).is_file()] == []
        assert not any(re.match(r"\w+:|/", name) for name in files)


def test_pages_forbid_everything_but_their_own_files(site):
    for page in site.rglob("*.html"):
        (policy,) = CONTENT.findall(page.read_text())
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'"
        sources = {word for rule in rules.values() for word in rule.split()}
        assert sources == {"'none'", "'self'", "file:", "data:"}


def test_the_scripts_never_set_markup_fetch_or_evaluate():
    for script in (path for path in SITE.iterdir() if path.name.endswith(".js")):
        code = script.read_text(encoding="utf-8")
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\("
        assert not re.search(forbidden + r"|fetch\(|XMLHttpRequest|import\(", code), script.name


def test_data_hold_scores_intervals_groups_and_marks(site):
    data = script_data(site / "data.js")
    places = {place["name"]: place for place in data["places"]}
    rows = {row["name"]: row for row in data["rows"]}
    cell = rows["a"]["cells"][str(places["beir/scifact"]["id"])]
    assert cell["s"][MEASURE] == [0.375, 0.25, 0.5, 1, None, 0]
    assert set(cell["s"]) == {MEASURE, "R@100"}
    assert rows["b/c"]["cells"][str(places["beir/fiqa"]["id"])]["d"] == 1
    assert str(places["beir/fiqa"]["id"]) not in rows["a"]["cells"]


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner)))
def test_nothing_in_a_script_file_can_end_it_and_all_of_it_comes_back(value):
    text = script_json(value)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


@given(st.lists(st.text(min_size=1), unique=True))
def test_every_name_has_a_page_of_its_own_on_any_file_system(names):
    found = slugs("models", names)
    assert len({path.lower() for path in found}) == len(names)
    assert all(re.fullmatch(r"models/[a-z0-9][a-z0-9.-]{0,80}", path) for path in found)


def test_two_sites_of_the_same_results_are_the_same_bytes(tmp_path, site):
    other = written(tmp_path / "results", tmp_path / "again").parent
    files = sorted(path.relative_to(site) for path in site.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    assert [
        name for name in files if (site / name).read_bytes() != (other / name).read_bytes()
    ] == []
