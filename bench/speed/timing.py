"""The clock of all measurements: tools take turns at the same work, and results are compared."""

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from bench.speed.records import Contestant, Spread

Found = TypeVar("Found")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Pass:
    """Some work done once.

    Attributes:
        seconds: on the wall.
        processor_s: seconds of the processor, of all threads.
        result: vectors float32 ``(n, dim)``, or a score.
        phases_s: seconds by kind of work.
    """

    seconds: float
    processor_s: float
    result: Any
    phases_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedTool:
    """A tool that is ready to do the work once, whenever it is called."""

    tool: str
    version: str
    run: Callable[[], Pass]


def contest(
    entrants: Sequence[TimedTool], repeats: int, tolerance: float, say: Say, *, warm_up: bool
) -> tuple[Contestant, ...]:
    """Have every tool do the work ``repeats`` times, by turns.

    Args:
        entrants: the first is ours: results and times are compared with its.
        tolerance: largest absolute difference of a result from ours that is none.
        say: told of each pass as soon as it is done.
        warm_up: do the work once more before, uncounted.
    """
    for entrant in entrants if warm_up else ():
        entrant.run()
    passes: list[list[Pass]] = [[] for _ in entrants]
    differences = [0.0] * len(entrants)
    reference: Any = None
    for turn in range(repeats):
        for place in in_turn(len(entrants), turn):
            done = entrants[place].run()
            reference = done.result if reference is None else reference  # ours is first in turn 0
            apart = np.abs(np.subtract(done.result, reference)).max(initial=0)
            differences[place] = float(np.maximum(differences[place], apart))  # NaN stays
            passes[place].append(done)
            say(
                f"{entrants[place].tool}: {done.seconds:.2f} s on the wall, "
                f"{done.processor_s:.2f} s of the processor"
            )
    ours, *others = (
        _contestant(entrant, own, apart, apart <= tolerance)
        for entrant, own, apart in zip(entrants, passes, differences, strict=True)
    )
    return (ours, *(_compared(row, ours) if row.agrees else row for row in others))


def _contestant(
    entrant: TimedTool, passes: Sequence[Pass], difference: float, agrees: bool
) -> Contestant:
    first = passes[0].result
    return Contestant(
        tool=entrant.tool,
        version=entrant.version,
        wall_s=Spread.of([done.seconds for done in passes]),
        processor_s=Spread.of([done.processor_s for done in passes]),
        phases_s=spreads([done.phases_s for done in passes]),
        difference=difference,
        agrees=agrees,
        score=None if np.ndim(first) else float(first),
    )


def _compared(row: Contestant, ours: Contestant) -> Contestant:
    processor_s = ours.processor_s.median
    return msgspec.structs.replace(
        row,
        ratio=row.wall_s.median / ours.wall_s.median,
        processor_ratio=row.processor_s.median / processor_s if processor_s else None,
    )


def in_turn(count: int, turn: int) -> list[int]:
    """Places 0 to ``count - 1``, beginning with another one each turn: nobody is always first."""
    return [(turn + place) % count for place in range(count)]


def spreads(repeated: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Repeated measurements of several things, by name; what is absent took no time."""
    names = dict.fromkeys(name for phases in repeated for name in phases)
    return {name: Spread.of([phases.get(name, 0.0) for phases in repeated]) for name in names}


def timed(work: Callable[[], Found]) -> tuple[float, Found]:
    """Wall-clock seconds of some work, and what it gave; GPUs are idle at both ends."""
    synchronise()
    start = time.perf_counter()
    result = work()
    synchronise()
    return time.perf_counter() - start, result


def timed_pass(work: Callable[[], object]) -> Pass:
    """Some work in this process, done once."""
    processor_s = time.process_time()
    seconds, result = timed(work)
    return Pass(seconds, time.process_time() - processor_s, result)


def synchronise() -> None:
    """Wait until every GPU has done what it was asked to do."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


def processor_name() -> str:
    """Name of the processor, as the kernel states it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
