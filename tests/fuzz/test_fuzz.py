"""A short campaign over every kind of input; and what would make a campaign worthless."""

import json
import random
from pathlib import Path

import pytest

from tests.fuzz.campaign import GOOD, campaign, trials
from tests.fuzz.oracle import mean, ranked
from tests.fuzz.subjects import SUBJECTS
from tests.fuzz.subjects.base import Finished
from tests.fuzz.subjects.command_line import CommandLine
from tests.fuzz.subjects.layouts import Beir
from tests.fuzz.subjects.sample import write_beir
from tests.fuzz.worker import Outcome, Trial, _verdict, attempt, run, sound

SHORT_S = 40.0  # all are begun within 20 where nothing else runs
SLOW = ("checkpoint", "adapter")  # they import torch and more: left to `tox -e fuzz`


def test_a_short_campaign_finds_no_traceback_and_no_silent_difference() -> None:
    subjects = [name for name in SUBJECTS if name not in SLOW]
    outcomes = list(campaign(0, 72, subjects, 1, SHORT_S))
    assert [outcome for outcome in outcomes if outcome.verdict not in GOOD] == []
    assert outcomes


def test_a_mutation_is_the_same_whenever_it_is_made(tmp_path: Path) -> None:
    base = sound(Beir(), tmp_path / "sound")
    first, second = (
        attempt(Trial(7, "beir", 3), base, tmp_path / place) for place in ("one", "two")
    )
    assert first.mutation == second.mutation
    files = [
        {
            path.name: path.read_bytes()
            for path in (tmp_path / place / "input").rglob("*")
            if path.is_file()
        }
        for place in ("one", "two")
    ]
    assert files[0] == files[1]


def test_subjects_take_turns() -> None:
    wanted = [("beir", 0), ("card", 0), ("beir", 1)]
    drawn = list(trials(5, 3, ["beir", "card"]))
    assert [(trial.subject, trial.number) for trial in drawn] == wanted


@pytest.fixture
def evaluated(tmp_path: Path) -> tuple[Path, Finished]:
    """A folder with a sound evaluation in it, and what was printed."""
    write_beir(tmp_path / "input")
    finished = run(Beir(), random.Random(0), tmp_path)
    assert finished.code == 0
    return tmp_path, finished


def test_a_score_that_is_off_is_noticed(evaluated: tuple[Path, Finished]) -> None:
    folder, finished = evaluated
    document = json.loads(finished.stdout)
    document["results"][0]["measures"]["nDCG@10"] -= 1e-6
    wrong = Finished(0, json.dumps(document), "")
    assert _verdict(Beir(), folder, folder, finished) == ("accepted", "")
    verdict, detail = _verdict(Beir(), folder, folder, wrong)
    assert verdict == "silent difference"
    assert detail.startswith("nDCG@10 is ")


def test_a_document_that_was_dropped_is_noticed(evaluated: tuple[Path, Finished]) -> None:
    folder, finished = evaluated
    lines = (folder / "input" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "input" / "corpus.jsonl").write_text("\n".join(lines[1:]), encoding="utf-8")
    assert _verdict(Beir(), folder, folder, finished)[0] == "silent difference"


@pytest.mark.parametrize(
    ("finished", "verdict"),
    [
        (Finished(70, "", "internal error: KeyError: 'x'"), "internal error"),
        (Finished(1, "", "Traceback (most recent call last):"), "traceback"),
        (Finished(4, "", ""), "exit 4"),
        (Finished(2, "", ""), "refused without a word"),
        (Finished(2, "", "error: \x1b[31m"), "terminal escape"),
        (Finished(2, "", "error: no"), "refused"),
    ],
)
def test_every_bad_end_has_its_name(
    finished: Finished, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert _verdict(Beir(), tmp_path, tmp_path, finished)[0] == verdict


def test_a_process_that_dies_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    (outcome,) = campaign(0, 1, ["no such subject"], 1, 60.0)
    assert isinstance(outcome, Outcome)
    assert outcome.verdict == "killed by 1"
    assert "KeyError" in outcome.detail


def test_every_sound_command_line_is_accepted(tmp_path: Path) -> None:
    """Mutations of what is refused anyway would find nothing."""
    subject = CommandLine()
    subject.make(tmp_path)
    refused = {}
    for template in subject.commands:
        (tmp_path / "typed.json").write_text(json.dumps(subject.typed(template, tmp_path)))
        finished = run(subject, random.Random(0), tmp_path)
        if finished.code not in (0, 1, 3, 4):
            refused[template] = finished.stderr
    assert refused == {}


def test_the_independent_scores_are_those_of_the_definitions() -> None:
    grades = {"q": {"a": 2, "b": 1, "x": -1}, "r": {"c": 1}}
    ranking = ranked({("q", "b"): 1.0, ("q", "a"): 0.5, ("q", "x"): 2.0}, 10, exclude_self=False)
    assert ranking == {"q": ["x", "b", "a"]}
    ideal, gained = 2 + 0.6309297535714575, 0.6309297535714575 + 2 * 0.5
    assert mean("nDCG@10", ranking, grades) == pytest.approx(gained / ideal / 2)
    assert mean("R@2", ranking, grades) == 0.25
    assert mean("RR@10", ranking, grades) == 0.25
    assert mean("AP", ranking, grades) == pytest.approx((1 / 2 + 2 / 3) / 2 / 2)
    assert mean("P@2", ranking, grades) == 0.25
    assert mean("Success@1", ranking, grades) == 0.0
    assert mean("AP(rel=2)", ranking, grades) is None
