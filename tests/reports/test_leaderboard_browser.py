"""The page in a real browser, opened from disk: sorting, filtering, links, names that are attacks.

Needs Chromium and selenium (the extra ``test``); skipped with a reason without either.
"""

import json
from pathlib import Path

import pytest

from bench.evaluation.result_record import Timings
from datasets_cfg.catalogue import expand_names
from reports.leaderboard import page
from retrievers.models.card import Card, ExpectedScore
from tests.support.browser import (
    NAMES,
    PHONE,
    asked_for,
    awaited,
    choose,
    opened,
    press,
    texts,
)
from tests.support.collections import with_metadata
from tests.support.leaderboards import MEASURE, board_of, make_protocol, recipe_of, store

pytestmark = pytest.mark.slow

FORUMS = expand_names(["beir/cqadupstack"])
AWKWARD = "&amp;\u202e"
SORT_BY = "thead th[data-column='{}'] button"


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """A page of a complete suite, a gap, another protocol, two recipes, claims and attacks."""
    place = tmp_path_factory.mktemp("leaderboard")
    results = place / "results"
    for number, name in enumerate(FORUMS):
        store(results, "alpha", name, [0.5 + number / 100] * 30, in_domain=number == 0)
        store(results, "beta", name, [0.25, 0.75] * 15)
        if number:
            store(results, "gamma", name, [0.9] * 30)
    for tokens in (9, 128):
        recipe = recipe_of("delta", max_document_tokens=tokens)
        spent = Timings(encode_documents_s=1.0, encoded_tokens=1000 * tokens)
        store(results, "delta", "beir/scifact", [tokens / 200] * 4, recipe=recipe, timings=spent)
    shallow = make_protocol("beir/scifact", depth=10)
    values = {MEASURE: [0.5, 0.25], "R@100": [1.0, 1.0]}
    store(results, "alpha", "beir/scifact", values, protocol=shallow)
    for number, name in enumerate(NAMES):
        store(results, name, f"{name}-set", [0.1 * number], recipe=None, index="")
    claim = ExpectedScore(dataset=FORUMS[1], measure=MEASURE, value=0.4321, source=NAMES[0])
    long = f"https://{'results' * 12}.example"
    other = ExpectedScore(dataset=FORUMS[2], measure=MEASURE, value=0.4321, source=long)
    cards = {"alpha": Card(name="alpha", title="Alpha", missing="x", expected=(claim, other))}
    return write_page(results, cards, every_measure=True)


def write_page(results: Path, cards=None, **fields) -> Path:
    """The page of the results below a folder, next to it."""
    path = results.with_name("page.html")
    path.write_text(page(board_of(results, cards, **fields), ""))
    return path


def models(browser) -> list[str]:
    return texts(browser, "#table tbody th.model")


def column_of(browser, name: str) -> str:
    """Id of the column of a suite or collection."""
    script = "return 'dataset-' + DATASETS.find(one => one.name === arguments[0]).id"
    return browser.execute_script(script, name)


def column(browser, identity: str) -> list[str]:
    """Visible cells of a column, from the top."""
    script = (
        "const at = [...document.querySelectorAll('#table thead th')]"
        ".findIndex(one => one.dataset.column === arguments[0]);"
        "return [...document.querySelectorAll('#table tbody tr:not([hidden])')]"
        ".map(line => line.children[at].textContent)"
    )
    return browser.execute_script(script, identity)


def test_models_are_ranked_by_the_first_whole_suite_with_gaps_last(browser, index):
    opened(browser, index)
    assert models(browser)[:2] == ["alpha", "beta"]
    suite = column(browser, column_of(browser, "beir/cqadupstack"))
    assert suite[:2] == ["0.5550*", "0.5000"]
    assert "1 of 12 missing" in suite[2:]
    assert column(browser, "group")[:3] == ["1", "2", ""]


def test_a_click_sorts_another_one_reverses_and_gaps_stay_last(browser, index):
    opened(browser, index)
    name = column_of(browser, FORUMS[1])
    press(browser, SORT_BY.format(name))
    assert models(browser)[:3] == ["gamma", "alpha", "beta"]
    head = browser.find_element("css selector", f"th[data-column='{name}']")
    assert head.get_attribute("aria-sort") == "descending"
    press(browser, SORT_BY.format(name))
    assert models(browser)[:3] == ["beta", "alpha", "gamma"]
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(browser, name)[3:] == [""] * (len(models(browser)) - 3)
    assert len(browser.find_elements("css selector", "#table [aria-sort]")) == 1


def test_typing_filters_models_also_by_recipe_and_says_how_many_are_left(browser, index):
    opened(browser, index)
    total = len(models(browser))
    field = browser.find_element("id", "find")
    field.send_keys("DELTA 128")
    assert models(browser) == ["delta@max_document_tokens=128"]
    assert texts(browser, "#count") == [f"1 of {total} models"]
    field.clear()
    field.send_keys("someone/alpha")
    assert models(browser) == ["alpha"]


def test_another_measure_changes_every_column(browser, index):
    opened(browser, index)
    choose(browser, "#measure", "R@100")
    assert (
        models(browser)[0],
        column(browser, column_of(browser, "beir/scifact@depth=10"))[0],
    ) == ("alpha", "1.0000")
    assert [text for text in texts(browser, "#table thead th") if MEASURE in text] == []


def test_intervals_claims_recipes_and_zero_shot_can_be_switched_on(browser, index):
    opened(browser, index)
    name = column_of(browser, FORUMS[1])
    for box in ("intervals", "claims"):
        press(browser, f"#{box}")
    alpha = dict(zip(models(browser), column(browser, name), strict=True))["alpha"]
    assert alpha == "0.51000.510–0.510published 0.4321"
    press(browser, "#recipes")
    assert "maximum document tokens" in texts(browser, "#table thead button > span")
    press(browser, "#unseen")
    seen = dict(zip(models(browser), column(browser, column_of(browser, FORUMS[0])), strict=True))
    assert (seen["alpha"], seen["beta"][:6]) == ("", "0.5000")


def addresses(browser, index: Path) -> list[str]:
    """What follows # in the address of each page that the first one leads to; "" for itself."""
    opened(browser, index)
    script = "return [...document.querySelectorAll('main a[href]')].map(one => one.href)"
    found = browser.execute_script(script)
    assert all(address.startswith(f"{index.as_uri()}#") for address in found)
    return ["", *dict.fromkeys(address.partition("#")[2] for address in found)]


def test_every_page_draws_names_as_text_fits_a_phone_and_loads_nothing_else(browser, index):
    pages = addresses(browser, index)
    assert len(pages) == 1 + len(models(browser)) + 13 + len(NAMES) + 1
    assert set(NAMES) <= set(models(browser))
    foreign = "return document.querySelectorAll('main script, main img, main [onload]').length"
    heads = set()
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        for address in pages:
            opened(browser, index, address)
            assert browser.get_log("browser") == []
            assert browser.execute_script("return window.hacked === undefined")
            assert browser.execute_script(foreign) == 0
            width = browser.execute_script("return document.documentElement.scrollWidth")
            assert (address, width) == (address, 360)
            heads.update(texts(browser, "h1"))
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(heads) == len(pages)
    assert {url for url in asked_for(browser) if not url.startswith("data:")} == {index.as_uri()}


def test_the_page_of_a_model_shows_its_recipe_scores_and_claims(browser, index):
    opened(browser, index, "model/alpha")
    assert "someone/alpha" in texts(browser, "dd")
    rows = texts(browser, "main section:nth-of-type(1) tbody tr")
    assert any("0.5550*" in row and "11 of 12" in row for row in rows)
    (row,) = [text for text in texts(browser, "tbody tr") if text.startswith(FORUMS[1])]
    assert "0.5100" in row
    assert "0.4321" in row
    assert "+0.0779" in row
    choose(browser, "#measure", "R@100")
    assert [text.split("0.")[0] for text in texts(browser, "tbody tr")] == [
        "beir/scifact@depth=10R@1001.00001.000–1.0001.000–1.0001"
    ]


def test_back_and_forth_between_pages_keeps_what_was_chosen(browser, index):
    opened(browser, index)
    choose(browser, "#measure", "R@100")
    press(browser, "main a[href='#model/alpha']")
    awaited(browser, "return document.title === 'alpha'")
    assert texts(browser, "h1") == ["alpha"]
    browser.back()
    awaited(browser, "return document.title === 'Leaderboard'")
    assert browser.execute_script("return document.getElementById('measure').value") == "R@100"


def test_the_theme_follows_the_system_and_can_be_chosen(browser, index):
    ground = "return getComputedStyle(document.body).backgroundColor"
    for system, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 24, 29)")):
        feature = {"name": "prefers-color-scheme", "value": system}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        opened(browser, index)
        assert browser.execute_script(ground) == colour
    press(browser, "#theme")
    assert browser.execute_script(ground) == "rgb(255, 255, 255)"
    press(browser, "#theme")
    assert browser.execute_script(ground) == "rgb(20, 24, 29)"
    press(browser, "#theme")


def test_published_systems_are_marked_can_be_hidden_and_are_in_no_group(browser, tmp_path):
    for model in ("alpha", "beta"):
        store(tmp_path / "results", model, "beir/scifact", [0.5, 0.25])
    opened(browser, write_page(tmp_path / "results", every_measure=True, published=("dupmae",)))
    shown = texts(browser, "#table tbody th.model")
    assert "DupMAEpublished: DupMAE paper" in shown
    assert "BM25copied in DupMAE paper" in shown
    (line,) = [text for text in texts(browser, "#table tbody tr") if "DupMAEpublished" in text]
    assert line == "DupMAEpublished: DupMAE paper0.69900.4750"
    heads = texts(browser, "#table thead th")
    assert any(f"beir-18{MEASURE} · mean of 18" in head for head in heads)
    assert texts(browser, "#count") == ["2 of 2 models"]
    assert texts(browser, "section:last-of-type li") == ["https://arxiv.org/abs/2211.08769"]
    press(browser, "#systems")
    assert texts(browser, "#table tbody th.model") == ["alpha", "beta"]
    browser.find_element("id", "find").send_keys("nothing like it")
    assert texts(browser, "#count") == ["0 of 2 models"]


def test_differences_verdicts_and_interval_bars_refer_to_the_chosen_baseline(browser, tmp_path):
    base = [0.2, 0.4, 0.6, 0.8] * 30
    store(tmp_path / "results", "base", "set", base)
    store(tmp_path / "results", "worse", "set", [value / 2 for value in base])
    store(tmp_path / "results", "same", "set", base)
    opened(browser, write_page(tmp_path / "results", baseline=("base", "worse")))
    verdicts = dict(zip(models(browser), column(browser, "verdict"), strict=True))
    assert verdicts == {"base": "", "same": "INCONCLUSIVE", "worse": "REGRESSION"}
    assert texts(browser, "small.worse") == ["\u22120.250"]
    assert texts(browser, "small.unclear") == ["+0.000"]
    assert len(texts(browser, ".bar")) == 3
    choose(browser, "#baseline", "worse")
    assert texts(browser, "small.better") == ["+0.250", "+0.250"]
    choose(browser, "#baseline", "")
    assert not texts(browser, "small.difference")


def test_the_page_of_a_model_shows_its_slices_against_the_chosen_baseline(
    browser, bench, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    own = with_metadata(tmp_path / "own", [f"<b>{AWKWARD}", "acme", None])
    for model in ("bm25", "hashing"):
        assert bench("run", own, "--model", model).code == 0
    typed = ("--baseline", "bm25", "--by", "topic", "words", "--cache-dir", bench.cache)
    done = bench("leaderboard", "--results", bench.out, *typed, "--format", "html")
    assert done.code == 0, done.stderr
    (tmp_path / "page.html").write_text(done.stdout)
    opened(browser, tmp_path / "page.html", "model/hashing")
    assert browser.get_log("browser") == []
    assert set(texts(browser, "#slice-table tbody th")) == {
        f"<b>{AWKWARD}",
        "acme",
        "without topic",
    }
    assert len(texts(browser, "#slice-table .bar s")) == len(texts(browser, "#slice-table .bar"))
    document = json.loads(bench("leaderboard", "--results", bench.out, *typed, "--json").stdout)
    by_topic, by_words = document["contrasts"][0]["slices"]
    assert [one["field"] for one in (by_topic, by_words)] == ["topic", "words"]
    shown = dict(
        zip(
            texts(browser, "#slice-table tbody th"),
            texts(browser, "#slice-table small.difference"),
            strict=True,
        )
    )
    for one in by_topic["slices"]:
        value = one["paired"]["difference"]
        assert shown[one["value"]] == f"{value:+.3f}".replace("-", "\u2212")
    choose(browser, "#slices", "1")
    assert texts(browser, "#slice-table tbody th") == [one["value"] for one in by_words["slices"]]
    text = bench("leaderboard", "--results", bench.out, *typed).stdout
    assert "Slices by words, hashing − bm25" in text
    assert bench("leaderboard", "--results", bench.out, "--by", "words").code == 2
    assert bench("leaderboard", "--results", bench.out, *typed, "--format", "csv").code == 2
