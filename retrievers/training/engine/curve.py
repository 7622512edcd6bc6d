"""The loss curve of a training: one JSON document a line, on disk while training goes on."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from foundation.errors import BenchError


class LossPoint(msgspec.Struct, frozen=True):
    """Means over the steps since the point before.

    Attributes:
        step: the last of these steps, counted from 1.
        losses: ``loss`` and the losses that it is the sum of.
        lr: learning rate of the last step.
        seconds: of these steps.
        tokens: read in these steps by this process, padding not counted.
    """

    step: int
    losses: dict[str, float]
    lr: float
    seconds: float
    tokens: int


def append_point(path: Path, point: LossPoint) -> None:
    """Add a point at the end of a file."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(point) + b"\n")


def read_curve(path: Path) -> list[LossPoint]:
    """All points; a last line that a kill cut short is left out.

    Raises:
        BenchError: there is no such file, or it holds something else.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise BenchError(f"cannot read the loss curve {path}: {error.strerror}") from error
    decoder = msgspec.json.Decoder(LossPoint)
    try:
        return [decoder.decode(line) for line in lines if line.endswith(b"\n")]
    except msgspec.MsgspecError as error:
        raise BenchError(f"{path} is no loss curve: {error}") from error


def cut_curve(path: Path, step: int) -> None:
    """Forget what came after a step, so that a training can go on from there."""
    if path.exists():
        points: Sequence[LossPoint] = [one for one in read_curve(path) if one.step <= step]
        path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in points))
