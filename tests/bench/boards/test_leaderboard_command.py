"""``leaderboard`` from stored results to what is printed or written."""

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench.__main__ import main
from bench.cli.commands.leaderboard import leaderboard
from bench.cli.options.decide import LeaderboardOptions
from foundation.errors import BenchError
from tests.support.commands import options
from tests.support.leaderboards import MEASURE, script_data, store


@pytest.fixture(autouse=True)
def settings_of_one_command() -> Iterator[None]:
    """What a command sets for the libraries of its process is not there for the next test."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def results(tmp_path) -> Path:
    place = tmp_path / "results"
    store(place, "better", "one", {MEASURE: [0.75, 0.5], "R@100": [0.25, 0.25]})
    store(place, "worse", "one", {MEASURE: [0.25, 0.5], "R@100": [0.5, 0.5]})
    return place


def board(results: Path, **changes: Any) -> LeaderboardOptions:
    given = {
        "results": results,
        "out": results.parent / "site",
        "resamples": 199,
    }
    return options("leaderboard", **given | changes)


def printed(capsys, results: Path, **changes: Any) -> str:
    assert leaderboard(board(results, **changes)) == 0
    return capsys.readouterr().out


def test_csv_is_read_back_with_the_scores_that_were_stored(capsys, results):
    rows = list(csv.DictReader(io.StringIO(printed(capsys, results, format="csv"))))
    assert [(row["model"], float(row[f"one {MEASURE}"])) for row in rows] == [
        ("better", 0.625),
        ("worse", 0.375),
    ]


@pytest.mark.parametrize("how", [{"json": True}, {"format": "json"}])
def test_json_is_one_document_with_unrounded_scores(capsys, results, how):
    board = json.loads(printed(capsys, results, **how))
    (first, second) = board["rows"]
    assert first["cells"]["one"]["scores"][MEASURE]["value"] == 0.625
    assert second["cells"]["one"]["scores"]["R@100"]["value"] == 0.5
    assert board["results"] == 2


def test_html_is_a_site_with_intervals_of_every_measure_and_its_first_page_is_named(
    capsys, results
):
    index = Path(printed(capsys, results, format="html").strip())
    assert index == results.parent / "site" / "index.html"
    data = script_data(index.parent / "data.js")
    scores = data["rows"][0]["cells"]["0"]["s"]
    assert [scores[name][1] is not None for name in (MEASURE, "R@100")] == [True, True]


def test_the_site_compares_neighbours_and_the_pairs_that_are_asked_for(capsys, results):
    store(results, "worst", "one", [0.0, 0.0])
    choices = {"format": "html", "pair": [["better", "worst"]]}
    index = Path(printed(capsys, results, **choices).strip())
    pages = {path.stem for path in (index.parent / "pairs").glob("*.html")}
    assert pages == {"better-worst", "better-worse", "worse-worst"}


def test_a_folder_of_other_files_is_not_written_to(results):
    with pytest.raises(BenchError, match="no leaderboard wrote"):
        leaderboard(board(results, format="html", out=results))
    assert not (results / "index.html").exists()


def test_no_results_are_an_error_that_says_what_to_type(tmp_path):
    with pytest.raises(BenchError, match="holds no results"):
        leaderboard(board(tmp_path / "nothing"))


def test_the_command_line_writes_a_site_with_pairs_and_claims(capsys, results, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    monkeypatch.chdir(results.parent)
    words = "leaderboard --format html --pair better worse --published dupmae"
    assert main([*words.split(), "--resamples", "199"]) == 0
    assert Path(capsys.readouterr().out.strip()) == Path("leaderboard/index.html")
    assert Path("leaderboard/pairs/better-worse.html").is_file()
    data = script_data(Path("leaderboard/data.js"))
    assert data["published"] is True


def test_an_unknown_publication_is_bad_input(results, capsys):
    assert main(["leaderboard", "--results", str(results), "--published", "nothing"]) == 2
    assert "no published scores are called 'nothing'" in capsys.readouterr().err
