"""A short campaign over every kind of input; and one that meets a planted defect."""

import dataclasses
from pathlib import Path

import pytest

from tests.fuzz.__main__ import SLOW, campaign, main
from tests.fuzz.subjects import SUBJECTS


@pytest.mark.slow
def test_a_short_campaign_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    fast = [name for name in SUBJECTS if name not in SLOW]
    assert main(["--mutations", "144", "--only", *fast]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_a_planted_defect_is_found_and_reduced(tmp_path: Path) -> None:
    def judge(folder: Path, sound: Path) -> None:
        text = (folder / "input" / "some.trec").read_text(errors="replace")
        assert "tag\nq2" in text, "the line between two queries"

    subject = dataclasses.replace(SUBJECTS["run file"], judge=judge)
    found = campaign("run file", subject, 300, 0, tmp_path)
    assert "the line between two queries" in found
    assert "Draw" in found
