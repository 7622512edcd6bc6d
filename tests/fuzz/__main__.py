"""Damages every kind of file that the program reads, and every word of its command line.

What is refused must be refused in words (exit 2); what is accepted must be right, as far as the
subject can tell. Hypothesis draws the damage and shrinks what fails, which makes the exit code 1:

    python -m tests.fuzz --mutations 10000 --seed 1
    python -m tests.fuzz --only results cache
"""

import argparse
import contextlib
import faulthandler
import io
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from bench.__main__ import main as bench_main
from tests.fuzz.subjects import SUBJECTS, Subject

MOST_MEMORY = 12 << 30  # of addresses: what asks for more gets a MemoryError, not the machine
MOST_SECONDS = 120  # of one command: then its stack is printed, and the campaign ends
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
    faulthandler.dump_traceback_later(MOST_SECONDS, exit=True, file=2)
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            code = bench_main(words)
        except SystemExit as stop:  # of --help
            code = int(stop.code or 0)
    faulthandler.cancel_dump_traceback_later()
    return code, stdout.getvalue(), stderr.getvalue()


def campaign(name: str, subject: Subject, mutations: int, number: int, place: Path) -> str:
    """Damage one kind of input so many times; what went wrong, in its smallest form, or ""."""
    sound = place / name / "sound"
    sound.mkdir(parents=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        subject.make(sound)

    @seed(number)
    @settings(
        max_examples=mutations,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def trial(data: st.DataObject) -> None:
        attempt(subject, sound, place / name / "damaged", data)

    try:
        trial()
    except (Exception, FlakyFailure) as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        return f"{''.join(traceback.format_exception_only(error))[-3_000:]}\n{notes}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign over every kind of input, or over some."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mutations", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(SUBJECTS), metavar="SUBJECT")
    options = parser.parse_args(arguments)
    chosen = {name: SUBJECTS[name] for name in options.only or SUBJECTS}
    parts = {name: 1 / SLOW.get(name, 1) for name in chosen}
    findings = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TMPDIR=folder)
        tempfile.tempdir = None
        for name, subject in chosen.items():
            share = max(1, round(options.mutations * parts[name] / sum(parts.values())))
            began = time.monotonic()
            found = campaign(name, subject, share, options.seed, Path(folder))
            findings += bool(found)
            print(f"{name:12}{share:7,} mutations {time.monotonic() - began:7.1f} s", flush=True)
            print(found, end="", flush=True)
    print(f"{options.mutations:,} mutations, seed {options.seed}: {findings} kinds with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
