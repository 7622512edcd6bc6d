"""Speed of encoding: tools take turns over the same texts."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np

from bench.speed.machine import timed
from bench.speed.records import Spread, Throughput, ratio_of
from bench.speed.texts import Texts
from foundation.arrays import Float32Array
from retrievers.encoders.clock import Clock
from retrievers.encoders.protocol import Encoder

Say = Callable[[str], None]

OURS = "bench"
# Largest absolute difference of two unit vectors of the same text and weights.
TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Pass:
    """One pass over some texts.

    Attributes:
        seconds: on the wall.
        processor_s: seconds of the processor, of all threads.
        vectors: float32 ``(n, dim)``.
        phases_s: seconds by kind of work.
    """

    seconds: float
    processor_s: float
    vectors: Float32Array
    phases_s: Mapping[str, float] = field(default_factory=dict)


class Contestant(Protocol):
    """A tool that encodes, its weights loaded."""

    @property
    def tool(self) -> str:
        """Its name in tables."""
        ...

    @property
    def version(self) -> str:
        """Its version."""
        ...

    def encode(self, texts: Texts) -> Pass:
        """Encode the documents once."""
        ...


@dataclass(frozen=True)
class Ours:
    """This program's encoder, in this process."""

    encoder: Encoder
    version: str
    tool: str = OURS

    def encode(self, texts: Texts) -> Pass:
        """Encode the documents once."""
        clock: Clock = getattr(self.encoder, "clock", None) or Clock()
        earlier = clock.copy()
        titles, processor_s = texts.titles, time.process_time()
        seconds, vectors = timed(lambda: self.encoder.encode_documents(titles, texts.texts))
        processor_s = time.process_time() - processor_s
        spent = clock.since(earlier).seconds
        phases_s = {name: took for name, took in spent.items() if took}
        return Pass(seconds, processor_s, vectors, phases_s)


def race_encoders(
    contestants: Sequence[Contestant], texts: Texts, repeats: int, dtype: str, say: Say
) -> tuple[Throughput, ...]:
    """Every tool encodes the texts once without being counted, then ``repeats`` times by turns.

    Args:
        contestants: the first is ours: vectors and speeds are compared with its.
        dtype: of the weights; decides how far vectors may differ.
        say: told the result of each pass as soon as it is there.
    """
    warm = [contestant.encode(texts).vectors for contestant in contestants]
    passes: list[list[Pass]] = [[] for _ in contestants]
    for turn in range(repeats):
        for place in in_turn(len(contestants), turn):
            done = contestants[place].encode(texts)
            passes[place].append(done)
            rate = f"{len(texts.texts) / done.seconds:,.0f} documents/s"
            say(
                f"{contestants[place].tool}: {rate}, {said_seconds(done.seconds, done.processor_s)}"
            )
    rows = [
        _throughput(contestant, texts, own)
        for contestant, own in zip(contestants, passes, strict=True)
    ]
    tolerance = TOLERANCES[dtype]
    return (
        rows[0],
        *(
            _compared(row, rows[0], float(np.abs(vectors - warm[0]).max()), tolerance)
            for row, vectors in zip(rows[1:], warm[1:], strict=True)
        ),
    )


def said_seconds(wall_s: float, processor_s: float) -> str:
    """Both times in words."""
    return f"{wall_s:.2f} s on the wall, {processor_s:.2f} s of the processor"


def in_turn(count: int, turn: int) -> list[int]:
    """Places 0 to ``count - 1``, beginning with another one each turn: nobody is always first."""
    return [(turn + place) % count for place in range(count)]


def _throughput(contestant: Contestant, texts: Texts, passes: Sequence[Pass]) -> Throughput:
    lengths = texts.lengths
    seconds = Spread.of([done.seconds for done in passes])
    return Throughput(
        tool=contestant.tool,
        version=contestant.version,
        lengths=lengths,
        seconds=seconds,
        processor_s=Spread.of([done.processor_s for done in passes]),
        documents_per_s=lengths.documents / seconds.median,
        tokens_per_s=lengths.tokens / seconds.median,
        phases_s=spreads([done.phases_s for done in passes]),
    )


def _compared(row: Throughput, ours: Throughput, difference: float, tolerance: float) -> Throughput:
    agrees = difference <= tolerance
    return msgspec.structs.replace(
        row,
        difference=difference,
        tolerance=tolerance,
        agrees=agrees,
        speedup=ours.tokens_per_s / row.tokens_per_s if agrees else None,
        processor_speedup=ratio_of(row.processor_s, ours.processor_s) if agrees else None,
    )


def spreads(repeated: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Repeated measurements of several things, by name; what is absent took no time."""
    names = dict.fromkeys(name for phases in repeated for name in phases)
    return {name: Spread.of([phases.get(name, 0.0) for phases in repeated]) for name in names}
