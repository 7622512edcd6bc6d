"""``leaderboard`` from stored results to what is printed or written."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from bench.cli.commands.deciding import leaderboard
from bench.requests.deciding import LeaderboardRequest
from tests.support.collections import options
from tests.support.leaderboards import MEASURE, store


@pytest.fixture
def results(tmp_path) -> Path:
    place = tmp_path / "results"
    store(place, "better", "one", {MEASURE: [0.75, 0.5], "R@100": [0.25, 0.25]})
    store(place, "worse", "one", {MEASURE: [0.25, 0.5], "R@100": [0.5, 0.5]})
    return place


def board(results: Path, **changes: Any) -> tuple[LeaderboardRequest, Any]:
    given = {"results": results, "resamples": 199}
    return options("leaderboard", **given | changes)


def printed(capsys, results: Path, **changes: Any) -> str:
    assert leaderboard(*board(results, **changes)) == 0
    return capsys.readouterr().out


def test_csv_is_read_back_with_the_scores_that_were_stored(capsys, results):
    rows = list(csv.DictReader(io.StringIO(printed(capsys, results, format="csv"))))
    assert [(row["model"], float(row[f"one {MEASURE}"])) for row in rows] == [
        ("better", 0.625),
        ("worse", 0.375),
    ]
