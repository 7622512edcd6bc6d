"""Damages every kind of file that the program reads, and every word of its command line.

What is refused must be refused in words (exit 2); what is accepted must be right, as far as the
subject can tell. Hypothesis draws the damage and shrinks what fails. `tox -e fuzz -- 10000` draws
more of it.
"""

import contextlib
import io
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bench.__main__ import main
from tests.fuzz.subjects import SUBJECTS, Subject

MUTATIONS = int(os.environ.get("FUZZ_MUTATIONS", "15"))  # of each kind of input
SLOW = {"checkpoint": 8}  # a share of the mutations of others
HOSTILE = [
    *("", " ", "-", "--", "nan", "inf", "-1", "0", "1.5", "1e400", "9" * 400, "x" * 5_000, "é"),
    *("\x1b[31m", "..", "/dev/null", "a/b", "@", "own@depth=x", "?nprobe=", "IVF0,Flat", "PQ3"),
    *("nDCG@", "@10", "AP(rel=99999999999)", "s3://", "http://[", "{}", "%s", "a=b", "null", "[]"),
    *('"', "\t", "\n", "\0", "\udcff", "true", "[[", "1_0", "٣"),
]
PIECES = [word.encode("utf-8", "surrogateescape") for word in HOSTILE]
WORDS = [[word] for word in HOSTILE if word != "\0"]  # no process is given one that holds it


def damaged(content: bytes, data: st.DataObject) -> bytes:
    """A file with a piece cut out, replaced, repeated or put in, or with a bit flipped."""
    draw = data.draw
    kind = draw(st.sampled_from(["replace", "flip", "cut", "repeat", "end"]), label="damage")
    start = draw(st.integers(0, len(content)), label="start")
    end = min(len(content), start + draw(st.integers(0, 40), label="length"))
    if kind == "flip" and content:
        start = min(start, len(content) - 1)
        return (
            content[:start]
            + bytes([content[start] ^ 1 << draw(st.integers(0, 7))])
            + content[start + 1 :]
        )
    if kind == "end":
        return content[:start]
    between = {
        "replace": draw(st.sampled_from(PIECES), label="by"),
        "repeat": content[start:end] * 2,
    }
    return content[:start] + between.get(kind, b"") + content[end:]


def damage_folder(folder: Path, data: st.DataObject) -> None:
    """Damage one file below a folder, or remove it, or put a folder in its place."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files), label="file")
    how = data.draw(st.integers(0, 19), label="how")
    content = path.read_bytes()
    path.unlink()
    if how == 0:
        path.mkdir()
    elif how > 1:
        path.write_bytes(damaged(content, data))


def damaged_words(words: list[str], data: st.DataObject) -> list[str]:
    """The words of a command with one or two of them changed, left out, or put in."""
    for _ in range(data.draw(st.integers(1, 2), label="changes")):
        at = data.draw(st.integers(0, len(words) - 1), label="at")
        new = data.draw(st.sampled_from([*WORDS, [], [words[at]] * 2]))
        words = [*words[:at], *new, *words[at + 1 :]] or ["list"]
    return words


def attempt(subject: Subject, sound: Path, place: Path, data: st.DataObject) -> None:
    """Damage a copy of the sound input, run a command on it, and judge.

    Raises:
        AssertionError: a traceback, an exit code that is none, or what was accepted is wrong.
    """
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound, place)
    template = data.draw(st.sampled_from(subject.commands), label="command")
    words = [word.format(f=place) for word in template.split()]
    if subject.words:
        words = damaged_words(words, data)
    else:
        damage_folder(place / "input", data)
    code, stdout, stderr = run(words, place)
    said = stdout + stderr
    assert code != 70, said
    assert "Traceback (most recent" not in said, said
    assert "\x1b" not in said, repr(said[-2_000:])
    assert code in (*subject.codes, 2), f"exit {code}: {said}"
    assert code != 2 or "error: " in stderr or "damaged" in stderr, (
        f"refused without a word: {said}"
    )
    if code == 0:
        subject.judge(place, sound)


def run(words: list[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process, from inside the folder."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            code = main(words)
        except SystemExit as stop:  # of --help
            code = int(stop.code or 0)
    return code, stdout.getvalue(), stderr.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_damaged_input_is_refused_in_words_or_read_as_it_is(name: str, tmp_path: Path) -> None:
    subject, sound = SUBJECTS[name], tmp_path / "sound"
    sound.mkdir()
    subject.make(sound)

    @settings(
        max_examples=max(1, MUTATIONS // SLOW.get(name, 1)),
        derandomize="FUZZ_MUTATIONS" not in os.environ,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def attempt_once(data: st.DataObject) -> None:
        attempt(subject, sound, tmp_path / "damaged", data)

    attempt_once()
