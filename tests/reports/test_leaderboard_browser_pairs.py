"""The page of a pair and published systems in a real browser."""

from pathlib import Path

import pytest

from bench.boards.assembly import Choice, assemble
from bench.boards.rows import results_in
from bench.comparing.statistics import Resampling
from reports.pages import write_site
from tests.support.browser import opened, press, texts
from tests.support.leaderboards import MEASURE, store

SCORES = {
    "alpha": [1.0, 0.9, 0.5, 0.5, 0.5, 0.0],
    "beta": [0.0, 0.1, 0.5, 0.5, 0.5, 1.0],
}


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """A site with a pair on two collections, and with claims."""
    place = tmp_path_factory.mktemp("pairs")
    for model, scores in SCORES.items():
        store(place / "results", model, "beir/scifact", scores)
        store(place / "results", model, "far", scores[::-1])
    choice = Choice(every_measure=True, neighbours=True, published=("dupmae",))
    board = assemble(results_in(place / "results"), {}, choice, Resampling(resamples=99))
    return write_site(board, place / "site")


def test_the_page_of_a_pair_says_what_shows_the_queries_that_changed_most(browser, index):
    opened(browser, index.parent / "pairs" / "alpha-beta.html")
    assert texts(browser, "main code") == ["python -m bench compare alpha beta --changed 3"]
    assert browser.get_log("browser") == []


def test_published_systems_are_marked_can_be_hidden_and_are_in_no_group(browser, index):
    opened(browser, index)
    shown = texts(browser, "#table tbody th.model")
    assert "DupMAEclaim, DupMAE paper" in shown
    assert "BM25claim, copied, DupMAE paper" in shown
    (line,) = [text for text in texts(browser, "#table tbody tr") if "DupMAEclaim" in text]
    assert line == "DupMAEclaim, DupMAE paper0.47500.6990"
    heads = texts(browser, "#table thead th")
    assert any(f"beir-18{MEASURE} · mean of 18" in head for head in heads)
    assert texts(browser, "#count") == ["2 of 2 models"]
    assert texts(browser, "section:last-of-type li") == ["https://arxiv.org/abs/2211.08769"]
    press(browser, "#systems")
    assert texts(browser, "#table tbody th.model") == ["alpha", "beta"]
    browser.find_element("id", "find").send_keys("nothing like it")
    assert texts(browser, "#count") == ["0 of 2 models"]
