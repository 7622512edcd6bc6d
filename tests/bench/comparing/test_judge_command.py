"""``judge``: lists of pairs, their judgements as an overlay, and the page in a real browser."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import bench
from bench.comparing import settling
from bench.result_store.find import find_results
from bench.result_store.result import load
from tests.support.browser import HOSTILE, awaited, can_browse, chromium
from tests.support.collections import Bench, Finished, write_collection

NUMBERS = range(12)
EVIL = {f"d{n:02}": f"{text} lift wing" for n, text in enumerate(HOSTILE)}
TEXTS = {f"d{n:02}": f"wing lift number{n:02} flow" for n in NUMBERS} | EVIL
DOCUMENTS = {name: ("=HYPERLINK(1)" * (name == "d07"), text) for name, text in TEXTS.items()}
DOCUMENTS |= {"-1": ("", "wing lift copy"), "copy": ("", "wing lift copy")}
QUERIES = {f"q{n:02}": f"wing lift number{n:02}" for n in NUMBERS} | {"+q": "wing lift copy"}
QRELS = {(f"q{n:02}", f"d{n:02}"): 1 + n % 2 for n in NUMBERS} | {("+q", "d00"): 0}


@dataclass(frozen=True)
class Place:
    """A collection with results of two models, and the list of a comparison."""

    bench: Bench
    collection: Path

    def judge(self, *words: object) -> Finished:
        return self.run("judge", *words, "--on", self.collection, "--results", self.bench.out)

    def run(self, *words: object) -> Finished:
        return self.bench(*words, "--cache-dir", self.bench.cache)

    def rows(self) -> list[dict[str, str]]:
        with (self.bench.place / "list" / "pairs.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    folder = tmp_path_factory.mktemp("judge")
    found = Place(Bench(folder), write_collection(folder / "tiny", DOCUMENTS, QUERIES, QRELS))
    done = found.bench("run", found.collection, "--model", "hashing", "bm25")
    assert done.code == 0, done.stderr
    done = found.judge("export", "hashing", "bm25", "--out", folder / "list", "--budget", 200)
    assert done.code == 0, done.stderr
    return found


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["query_id", "doc_id", "grade", "judge", "copies"])
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(query_id: str, doc_id: str, grade: object, judge: str = "jane", copies: str = "") -> dict:
    named = locals()
    return dict(named)


def test_the_list_has_each_unjudged_pair_once_and_copies_together(place):
    lines = (place.bench.place / "list" / "pairs.jsonl").read_bytes().splitlines()
    pairs = [json.loads(line) for line in lines]
    keys = {(pair["query_id"], pair["doc_id"]) for pair in pairs}
    assert len(keys) == len(pairs)
    assert not keys & QRELS.keys()
    copies = {tuple(sorted([pair["doc_id"], *pair["copies"]])) for pair in pairs if pair["copies"]}
    assert copies == {("-1", "copy")}


def test_cells_that_a_spreadsheet_would_evaluate_are_neutralised_and_read_back(place, tmp_path):
    rows = place.rows()
    assert {"'+q", "'-1"} <= {cell for one in rows for cell in one.values()}
    assert not any(cell.startswith(tuple("=+-@\t\r")) for one in rows for cell in one.values())
    (some,) = [one for one in rows if one["copies"] and one["query_id"] == "'+q"]
    assert {some["doc_id"], some["copies"]} in ({"'-1", "copy"}, {"copy", "'-1"})
    judged = write_rows(tmp_path / "judged.csv", [row("'+q", "'-1", 2, copies="copy")])
    done = place.judge("import", judged, "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
    text = next((tmp_path / "out").rglob("judgements.jsonl")).read_text()
    assert json.loads(text) == {
        **{"query_id": "+q", "doc_id": "-1", "grade": 2, "judge": "jane", "copies": ["copy"]}
    }


@pytest.mark.slow
def test_scores_with_imported_judgements_are_those_of_a_collection_that_has_them(place, tmp_path):
    added = {("q00", "d05"): 2, ("q03", "d04"): 1, ("+q", "d01"): 1}
    judged = write_rows(tmp_path / "judged.csv", [row(*pair, n) for pair, n in added.items()])
    report = bench.judge(
        *("import", judged),
        on=str(place.collection),
        results=place.bench.out,
        out=tmp_path / "out",
        cache_dir=place.bench.cache,
    )
    assert report.judgements == 3
    full = write_collection(tmp_path / "full", DOCUMENTS, QUERIES, {**QRELS, **added})
    done = place.bench("run", full, "--model", "hashing", "bm25", "--results", tmp_path / "direct")
    assert done.code == 0, done.stderr
    for model in ("hashing", "bm25"):
        (expected,) = find_results(tmp_path / "direct", model)
        (found,) = find_results(tmp_path / "out", model)
        assert found.record.measures == pytest.approx(expected.record.measures, abs=1e-12)
        assert found.record.judged_at_10 == pytest.approx(expected.record.judged_at_10)
        before = load(place.bench.results("tiny", model)).record
        assert found.record.protocol.overlay == report.overlay
        assert before.protocol.overlay == ""
        assert found.record.key != before.key
    words = ("hashing", "bm25", "--results", tmp_path / "out")
    shown = place.run("compare", *words)
    assert f"imported judgements count, too (overlay {report.overlay})" in shown.stdout
    assert "not compared with their rankings" not in shown.stderr
    mixed = place.run(
        *("compare", "bm25", tmp_path / "out" / "tiny" / "hashing"), "--results", place.bench.out
    )
    assert mixed.code == 2
    assert "overlay" in mixed.stderr


def test_the_protocol_of_a_result_without_an_overlay_is_written_as_before(place):
    record = json.loads((place.bench.results("tiny", "bm25") / "result.json").read_text())
    assert "overlay" not in record["protocol"]


def test_wrong_lines_are_refused_together_and_nothing_is_stored(place, tmp_path):
    rows = [
        row("nobody", "d01", 1),
        row("q00", "nothing", 1),
        row("q00", "d03", "--1"),
        row("q00", "d03", 1, judge=""),
        row("q00", "d00", 2),  # 1 in the collection
        row("q01", "d02", ""),  # not judged yet
        row("q01", "d03", 1),
        row("q01", "d03", 0, judge="tom"),
    ]
    done = place.judge("import", write_rows(tmp_path / "j.csv", rows), "--out", tmp_path / "out")
    assert done.code == 2
    for line, reason in {
        2: "no query 'nobody'",
        3: "no document 'nothing'",
        4: "grade --1 is not one of 0, 1, 2",
        5: "a grade, but no judge",
        6: "has grade 1 in the collection, 2 here",
    }.items():
        assert f"line {line}: " in done.stderr
        assert reason in done.stderr
    assert "and 1 more" in done.stderr
    assert not (tmp_path / "out").exists()


def test_other_judgements_do_not_mix_with_those_of_a_folder(place, tmp_path):
    for number, code in ((1, 0), (2, 2)):
        rows = [row("q05", "d04", 1), row("q06", "d04", 1)][:number]
        judged = write_rows(tmp_path / f"{number}.csv", rows)
        done = place.judge("import", judged, "--out", tmp_path / "out")
        assert done.code == code, done.stderr
    assert "Choose another --out" in done.stderr


def test_a_row_with_more_cells_than_the_header_is_refused_by_line(place, tmp_path):
    path = tmp_path / "j.csv"
    path.write_text("query_id;doc_id;grade;judge\nq00;d03;1;jane\nq00;d04;1;jane;more\n")
    done = place.judge("import", path, "--out", tmp_path / "out")
    assert done.code == 2
    assert "line 3 has more cells than the header" in done.stderr


def test_json_lines_may_state_copies_as_the_csv_does(place, tmp_path):
    path = tmp_path / "j.jsonl"
    fields = {"query_id": "q07", "doc_id": "-1", "grade": 1, "judge": "jane", "copies": "copy"}
    path.write_text(json.dumps(fields))
    done = place.judge("import", path, "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
    text = next((tmp_path / "out").rglob("judgements.jsonl")).read_text()
    assert json.loads(text)["copies"] == ["copy"]


def test_a_list_without_judgements_says_what_to_fill_in(place, tmp_path):
    done = place.judge("import", place.bench.place / "list" / "pairs.csv")
    assert done.code == 2
    assert "no line has a new judgement" in done.stderr


def test_compare_and_check_say_whether_the_verdict_is_settled(place):
    compared = place.run("compare", "hashing", "bm25", "--results", place.bench.out)
    assert "Unjudged documents:" in compared.stdout
    document = json.loads(
        place.run("compare", "hashing", "bm25", "--results", place.bench.out, "--json").stdout
    )
    (holes,) = document["holes"]
    (pair,) = document["comparisons"][0]["collections"]
    assert holes["low"] <= pair["paired"]["difference"] <= holes["high"]
    assert holes["outcome"] in ("settled", "probably", "open")
    checked = place.run("check", "hashing", "--baseline", "bm25", "--results", place.bench.out)
    assert "Unjudged documents, for the verdict of `compare`:" in checked.stdout


def test_very_many_holes_are_examined_only_if_asked(place, monkeypatch):
    monkeypatch.setattr(settling, "MOST_HOLES", 3)
    words = ("compare", "hashing", "bm25", "--results", place.bench.out)
    assert "holes were not examined: there are" in place.run(*words).stdout
    assert "not examined" not in place.run(*words, "--holes").stdout


@pytest.mark.slow
@pytest.mark.skipif(not can_browse(), reason="needs Chromium and selenium")
def test_the_page_judges_by_keyboard_and_downloads_what_import_reads(place, tmp_path):
    from selenium.webdriver.support.wait import WebDriverWait

    browser = chromium()
    try:
        browser.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
        )
        browser.get((place.bench.place / "list" / "pairs.html").as_uri())
        awaited(browser, "return document.getElementById('done').textContent.startsWith('0 of')")
        body = browser.find_element("tag name", "body")
        seen = []
        for _ in range(30):
            seen.append(browser.find_element("id", "text").text)
            body.send_keys("j")
        assert set(HOSTILE) & {text.removesuffix(" lift wing") for text in seen}
        assert not browser.execute_script("return window.hacked")
        for _ in range(30):
            body.send_keys("k")
        body.send_keys("2", "0", "9", "j", "1", "k", "1", "1")
        assert browser.find_element("id", "done").text.startswith("3 of")
        body.send_keys("d")
        assert "name first" in browser.find_element("id", "done").text
        browser.find_element("id", "judge").send_keys("jane 2")
        body.send_keys("d")
        WebDriverWait(browser, 60).until(lambda _: (tmp_path / "judged.jsonl").exists())
        errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert errors == []
    finally:
        browser.quit()
    lines = [json.loads(line) for line in (tmp_path / "judged.jsonl").read_text().splitlines()]
    assert [line["grade"] for line in lines] == [2, 0, 1]
    assert {line["judge"] for line in lines} == {"jane 2"}
    done = place.judge("import", tmp_path / "judged.jsonl", "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
