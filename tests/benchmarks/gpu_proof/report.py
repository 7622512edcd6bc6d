"""Parts of a proof: run one after the other, each timed, caught, and written when it is done."""

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from tabulate import tabulate

from foundation.errors import BenchError, first_line
from foundation.files import replacing

PROOF_FILE = "proof.json"
GRACE_S = 20.0  # after the budget, until a part that is still running is stopped

State = Literal["passed", "failed", "broke", "out of time", "not here"]


class Check(msgspec.Struct, frozen=True):
    """Something that must hold.

    Attributes:
        name: what.
        passed: True where it does.
        found: the number or the numbers that decide.
        wanted: what they must be.
    """

    name: str
    passed: bool
    found: Any
    wanted: str


class Outcome(msgspec.Struct, frozen=True):
    """What a part gave: figures by name with their units, checks, and a line for the table."""

    headline: str
    figures: dict[str, Any] = {}
    checks: list[Check] = []


class Done(msgspec.Struct, frozen=True):
    """A part as it is reported.

    Attributes:
        state: ``passed``; ``failed``, a check does not hold; ``broke``, with an exception; ``out of
            time``, not run or stopped; ``not here``, without a package or a GPU that it needs.
        seconds: that it took.
    """

    section: str
    name: str
    state: State
    seconds: float
    outcome: Outcome
    error: str = ""


class Report(msgspec.Struct, frozen=True):
    """The whole proof.

    Attributes:
        passed: no check failed, nothing broke, and at least one check was made.
        complete: nothing was left out for lack of time.
    """

    passed: bool
    complete: bool
    machine: dict[str, Any]
    options: dict[str, Any]
    seconds: float
    parts: list[Done]


class NotHereError(Exception):
    """A part needs what this machine has not: a package or a GPU."""


class OutOfTimeError(BaseException):
    """The budget is spent; no ``Exception``, so that nothing on the way takes it for its own."""


@dataclass(frozen=True)
class Part:
    """One measurement.

    Attributes:
        needs_s: seconds that it is expected to take at full size; it is left out where fewer are
            left.
    """

    section: str
    name: str
    needs_s: float
    run: Callable[[], Outcome]


@dataclass
class Proof:
    """Runs parts within a budget; ``folder`` gets the file."""

    folder: Path
    budget_s: float
    machine: Mapping[str, Any]
    options: Mapping[str, Any]
    parts: list[Done] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget_s - (time.monotonic() - self.began)

    def run(self, parts: Sequence[Part]) -> Report:
        """Run all parts, in order; the file is whole after each."""
        for part in parts:
            print(f"{part.section}: {part.name} ...", file=sys.stderr, flush=True)
            done = self._run(part)
            print(f"    {done.state}, {done.seconds:.1f} s", file=sys.stderr, flush=True)
            self.parts.append(done)
            with replacing(self.folder / PROOF_FILE) as file:
                file.write(msgspec.json.format(encoded(self.report()), indent=1))
        return self.report()

    def report(self) -> Report:
        """Everything so far."""
        states = [done.state for done in self.parts]
        checked = any(done.outcome.checks for done in self.parts)
        return Report(
            passed=checked and not {"failed", "broke"} & set(states),
            complete="out of time" not in states,
            machine=dict(self.machine),
            options=dict(self.options),
            seconds=time.monotonic() - self.began,
            parts=self.parts,
        )

    def _run(self, part: Part) -> Done:
        start = time.monotonic()

        def done(state: State, outcome: Outcome, error: str = "") -> Done:
            spent = time.monotonic() - start
            return Done(part.section, part.name, state, spent, outcome, error)

        if self.left_s < part.needs_s:
            return done("out of time", Outcome(f"{self.left_s:.0f} s left of the budget"))
        try:
            with stopped_after(self.left_s + GRACE_S):
                outcome = part.run()
        except OutOfTimeError:
            return done("out of time", Outcome("stopped"))
        except NotHereError as error:
            return done("not here", Outcome(str(error)))
        except Exception as error:
            hint = f" ({error.hint})" if isinstance(error, BenchError) and error.hint else ""
            line = f"{type(error).__name__}: {first_line(error)}{hint}"
            return done("broke", Outcome(line[:160]), traceback.format_exc())
        finally:
            release()
        return done("passed" if all(c.passed for c in outcome.checks) else "failed", outcome)


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise ``OutOfTimeError`` in the block, where Python next has control, after some seconds."""

    def stop(*_: Any) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def release() -> None:
    """Give the memory of the last part back to the GPU, if it still answers."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def encoded(report: Report) -> bytes:
    """One JSON document; numbers of NumPy are numbers, NaN and infinity are null."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        return str(value)

    return msgspec.json.encode(report, enc_hook=plain)


def table_of(report: Report) -> str:
    """All parts for people, and below them every check that does not hold."""
    cells = [
        [done.section, done.name, done.state, f"{done.seconds:.1f}", done.outcome.headline]
        for done in report.parts
    ]
    lines = [tabulate(cells, ["section", "part", "result", "s", "figures"], tablefmt="github")]
    lines += [
        f"FAILED {done.section}: {done.name}: {check.name}: found {check.found}, "
        f"wanted {check.wanted}"
        for done in report.parts
        for check in done.outcome.checks
        if not check.passed
    ]
    return "\n".join(lines)
