"""A process that tries mutations one after the other; it may die of any of them."""

import contextlib
import io
import os
import random
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.subjects import SUBJECTS
from tests.fuzz.subjects.base import Finished, Subject

MOST_MEMORY = 12 << 30  # of addresses: what asks for more gets a MemoryError, not the machine
UNWANTED = ("BENCH_DATA", "BENCH_CACHE")


class Trial(NamedTuple):
    """One mutation by its number: the same one for the same seed, on every machine."""

    seed: int
    subject: str
    number: int


class Outcome(NamedTuple):
    """What came of it.

    Attributes:
        verdict: ``refused``, ``accepted``, or what went wrong, such as ``traceback``.
        detail: of what went wrong.
    """

    trial: Trial
    mutation: str
    verdict: str
    detail: str
    seconds: float


def work(connection: Connection, place: Path) -> None:
    """Answer trials with outcomes until None comes."""
    _settle(place)
    bases: dict[str, Path] = {}
    while (trial := connection.recv()) is not None:
        if trial.subject not in bases:
            bases[trial.subject] = sound(SUBJECTS[trial.subject], place / "sound" / trial.subject)
        connection.send(attempt(trial, bases[trial.subject], place / "mutated"))


def _settle(place: Path) -> None:
    """Limits and places, so that nothing outside ``place`` is touched or filled."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in UNWANTED:
        os.environ.pop(name, None)
    os.environ.update(HF_HUB_OFFLINE="1", TMPDIR=str(place), TQDM_DISABLE="1")
    tempfile.tempdir = None
    log = os.open(place / "native.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):  # libraries in C write there
        os.dup2(log, stream)


def sound(subject: Subject, folder: Path) -> Path:
    """The sound input, which is accepted and judged to be right.

    Raises:
        AssertionError: it is not, so that nothing could be learnt from its mutations.
    """
    folder.mkdir(parents=True)
    with _silent():
        subject.make(folder)
    shutil.copytree(folder, tried := folder.with_name(f"{folder.name}-tried"), symlinks=True)
    finished = run(subject, random.Random(0), tried)
    if finished.code != 0 or (problem := subject.judge(tried, tried, finished)):
        problem = problem if finished.code == 0 else f"exit {finished.code}: {finished.stderr}"
        raise AssertionError(f"the sound {subject.name} is refused or wrong: {problem}")
    return folder


def attempt(trial: Trial, base: Path, place: Path) -> Outcome:
    """Mutate a copy of the sound input, run the command, and judge."""
    subject, rng = SUBJECTS[trial.subject], random.Random(repr(trial))
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base, place, symlinks=True)
    mutation = subject.mutate(rng, place)
    began = time.monotonic()
    finished = run(subject, rng, place)
    seconds = time.monotonic() - began
    verdict, detail = _verdict(subject, place, base.with_name(f"{base.name}-tried"), finished)
    return Outcome(trial, mutation, verdict, detail, seconds)


def _verdict(subject: Subject, place: Path, before: Path, finished: Finished) -> tuple[str, str]:
    said = finished.stdout + finished.stderr
    if finished.code == 70 or "internal error" in finished.stderr:
        return "internal error", _last_log() or finished.stderr
    if "Traceback (most recent" in said:
        return "traceback", finished.stderr
    if finished.code not in subject.codes:
        return f"exit {finished.code}", finished.stderr
    if "\x1b" in said or "\x9b" in said:
        return "terminal escape", repr(said[-2000:])
    if finished.code == 2:
        explained = "error: " in finished.stderr
        return ("refused", "") if explained else ("refused without a word", finished.stderr)
    try:
        problem = subject.judge(place, before, finished)
    except Exception as error:
        trace = traceback.format_exc(limit=-2)
        problem = f"the oracle refuses: {type(error).__name__}: {error}\n{trace}"
    return ("silent difference", problem) if problem else ("accepted", "")


def _last_log() -> str:
    """The traceback that the program kept, which is then removed."""
    logs = sorted(Path(os.environ["TMPDIR"]).glob("bench-error-*.log"))
    content = "".join(path.read_text(encoding="utf-8", errors="replace") for path in logs[-1:])
    for path in logs:
        path.unlink()
    return content


def run(subject: Subject, rng: random.Random, folder: Path) -> Finished:
    """The subject's command in this process, from inside the folder."""
    from bench.__main__ import main
    from bench.cli.boundary import guarded
    from bench.cli.terminal import terminal

    command = subject.command(rng, folder)
    before = Path.cwd()
    with _silent() as (stdout, stderr):
        os.chdir(folder)
        try:
            if callable(command):
                with terminal():
                    code = guarded(command)
            else:
                code = main([str(word) for word in command])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0) if isinstance(stop.code, int | None) else 1
        except BaseException:
            code = 1
            stderr.write(traceback.format_exc())
        finally:
            os.chdir(before)
    return Finished(int(code), stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def _silent() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        yield stdout, stderr
