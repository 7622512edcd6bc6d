"""Pages of pairs and published systems in a real browser: pointer, keyboard, hostile texts."""

from pathlib import Path

import pytest

from bench.boards.assembly import Choice, assemble
from bench.boards.rows import results_in
from bench.comparing.statistics import Resampling
from bench.evaluate.run_files import write_run
from bench.evaluate.runs import Run
from bench.results.result import TREC_FILE
from datasets_cfg.dataset import Dataset, open_dataset
from reports.pages import write_site
from retrievers.models.parameters import Parameters
from tests.support.browser import (
    HOSTILE,
    PHONE,
    awaited,
    choose,
    opened,
    press,
    texts,
)
from tests.support.collections import write_collection
from tests.support.leaderboards import MEASURE, protocol_of, store

DOCUMENTS = ("<svg/onload=window.hacked=1>", "</script>", "plain")
NOTE = ".note.shown"
RIGHT, LEFT, HOME, END, ESCAPE, TAB = (
    "\ue014",
    "\ue012",
    "\ue011",
    "\ue010",
    "\ue00c",
    "\ue004",
)
SCORES = {
    "alpha": [1.0, 0.9, 0.5, 0.5, 0.5, 0.0],
    "beta": [0.0, 0.1, 0.5, 0.5, 0.5, 1.0],
}


def collection(place: Path) -> Dataset:
    """Six queries and three documents, all of them attacks but one document."""
    documents = dict.fromkeys(DOCUMENTS, (HOSTILE[1], HOSTILE[0]))
    queries = {f"q{number}": text for number, text in enumerate(HOSTILE)}
    qrels = {(name, DOCUMENTS[0]): 2 for name in queries}
    write_collection(place / "tiny", documents, queries, qrels)
    return open_dataset(str(place / "tiny"), cache_dir=place / "cache")


def evaluated(results: Path, dataset: Dataset, model: str, order: tuple[str, ...]) -> None:
    protocol = protocol_of(
        dataset.name,
        queries_sha256=dataset.queries_sha256,
        qrels_sha256=dataset.qrels_sha256,
    )
    known = Parameters(22_713_216) if model == "alpha" else Parameters(110_000_000, 600_000)
    folder = store(results, model, dataset.name, SCORES[model], protocol=protocol, parameters=known)
    ids = [f"q{n}" for n in range(6) for _ in order]
    run = Run.from_rows(ids, order * 6, [-float(n) for n in range(len(ids))])
    write_run(run, folder / TREC_FILE, model)


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """A site with a pair on three collections, of which one is at hand, and with claims."""
    place = tmp_path_factory.mktemp("pairs")
    dataset = collection(place)
    evaluated(place / "results", dataset, "alpha", DOCUMENTS)
    evaluated(place / "results", dataset, "beta", DOCUMENTS[::-1])
    for model, scores in SCORES.items():
        store(place / "results", model, "beir/scifact", scores)
        store(place / "results", model, "far", scores[::-1])
    choice = Choice(every_measure=True, neighbours=True, published=("dupmae",))
    board = assemble(
        results_in(place / "results"),
        {},
        choice,
        Resampling(resamples=99),
        opened=lambda protocol: dataset if protocol.collection == dataset.name else "not here",
    )
    return write_site(board, place / "site")


@pytest.fixture
def pair(browser, index) -> Path:
    """The page of the pair, with the collection that is at hand."""
    page = index.parent / "pairs" / "alpha-beta.html"
    opened(browser, page)
    number = browser.execute_script("return BOARD.places.find(one => one.name === 'tiny').id")
    choose(browser, "#queries-of", str(number))
    return page


def focus(browser, *keys: str) -> None:
    plot = browser.find_element("css selector", ".cloud")
    browser.execute_script("arguments[0].focus()", plot)
    for key in keys:
        plot.send_keys(key)


def note(browser) -> str:
    """The text of the tooltip, once the queries are read."""
    awaited(browser, "return document.querySelectorAll('.note.shown li').length > 0")
    return texts(browser, NOTE)[0]


def test_every_query_is_in_a_dot_and_queries_of_equal_scores_share_one(browser, pair):
    radii = browser.execute_script(
        "return [...document.querySelectorAll('.query')].map(one => Number(one.getAttribute('r')))"
    )
    assert len(radii) == 4
    assert radii[0] > radii[1] == radii[3]
    counts = browser.execute_script("return Object.values(PAIR.queries)[0].dots.map(d => d[2])")
    assert sum(counts) == 6


def test_arrow_keys_go_from_dot_to_dot_and_tell_queries(browser, pair):
    focus(browser, RIGHT)
    assert note(browser) == f"1 queryalpha 1.000, beta 0.000{HOSTILE[0]}"
    focus(browser, RIGHT)
    assert "alpha 0.900, beta 0.100" in note(browser)
    focus(browser, RIGHT)
    assert note(browser).startswith("3 queries")
    assert len(texts(browser, f"{NOTE} li")) == 3
    focus(browser, LEFT)
    assert "alpha 0.900" in note(browser)
    focus(browser, END)
    assert "alpha 0.000, beta 1.000" in note(browser)
    focus(browser, RIGHT)
    assert "alpha 0.000, beta 1.000" in note(browser)
    focus(browser, HOME)
    assert "alpha 1.000, beta 0.000" in note(browser)
    assert len(browser.find_elements("css selector", ".query.chosen")) == 1
    focus(browser, ESCAPE)
    assert texts(browser, NOTE) == []
    assert browser.find_elements("css selector", ".query.chosen") == []


def test_what_changed_most_has_its_text_judged_documents_and_both_rankings(browser, pair):
    assert texts(browser, "h4") == ["alpha is better", "beta is better"]
    summaries = texts(browser, "details.changed summary")
    assert len(summaries) == 3
    assert summaries[0] == f"{HOSTILE[0]}1.000 − 0.000 = +1.000"
    press(browser, "details.changed summary")
    (judged,) = texts(browser, ".judged li")
    assert judged.startswith(f"{DOCUMENTS[0]}grade 2 · rank 1 by alpha · rank 3 by beta")
    rows = texts(browser, "details[open] tbody tr")
    assert rows[0] == f"1{DOCUMENTS[0]} (grade 2){DOCUMENTS[2]}"
    assert rows[2] == f"3{DOCUMENTS[2]}{DOCUMENTS[0]} (grade 2)"


def test_hostile_queries_and_documents_are_text(browser, pair):
    focus(browser, *[RIGHT] * 4)
    note(browser)
    for summary in browser.find_elements("css selector", "details.changed summary"):
        summary.click()
    assert browser.execute_script("return window.hacked === undefined")
    unknown = "main script, main img, main [onload], head script:not([src])"
    assert browser.find_elements("css selector", unknown) == []
    assert browser.get_log("browser") == []


def test_on_a_phone_nothing_is_wider_than_the_screen_tooltips_included(browser, pair):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        for key in (RIGHT, RIGHT, RIGHT, END):
            focus(browser, key)
            note(browser)
            left, right = browser.execute_script(
                "const box = document.querySelector('.note').getBoundingClientRect();"
                "return [box.left, box.right]"
            )
            assert left >= 0
            assert right <= PHONE["width"]
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width == PHONE["width"]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


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
