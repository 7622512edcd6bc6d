"""The loss curve of a training: one JSON document a line, on disk while training goes on."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from foundation.errors import BenchError
from foundation.files import replace_file
from foundation.records import decode_json

if TYPE_CHECKING:
    from torch import Tensor

CURVE_FILE = "losses.jsonl"


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


@dataclass
class LossMeter:
    """Losses and tokens since the last point, summed where they are computed.

    To read a number from a GPU waits for it, so that is done once a point.
    """

    sums: "dict[str, Tensor]" = field(default_factory=dict)
    batches: int = 0
    tokens: "Tensor | None" = None
    since: float = field(default_factory=time.perf_counter)

    def add(self, losses: "Mapping[str, Tensor]", real: "Tensor") -> None:
        """Add one forward pass: its losses, and which of its tokens are no padding."""
        for name, loss in losses.items():
            value = loss.detach()
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.tokens = real.sum() + (0 if self.tokens is None else self.tokens)
        self.batches += 1

    @property
    def finite(self) -> bool:
        """False if a loss since the last point is not a number."""
        return all(bool(total.isfinite().all()) for total in self.sums.values())

    def take_point(self, step: int, lr: float) -> LossPoint:
        """The means since the last point; the next ones begin here."""
        now = time.perf_counter()
        point = LossPoint(
            step=step,
            losses={name: float(total) / self.batches for name, total in self.sums.items()},
            lr=lr,
            seconds=now - self.since,
            tokens=0 if self.tokens is None else int(self.tokens),
        )
        self.sums, self.batches, self.tokens, self.since = {}, 0, None, now
        return point


def append_point(path: Path, point: LossPoint) -> None:
    """Add a point at the end of a file."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(point) + b"\n")


def read_curve(path: Path) -> list[LossPoint]:
    """All points, at least one; a last line that a kill cut short is left out.

    Raises:
        BenchError: there is no such file, or it holds something else, or nothing.
    """
    try:
        lines = _complete_lines(path)
    except OSError as error:
        raise BenchError(f"cannot read the loss curve {path}: {error.strerror}") from error
    points = [decode_json(line, LossPoint, f"the loss curve {path}") for line in lines]
    if not points:
        raise BenchError(f"{path} is no loss curve: it holds no point")
    return points


def cut_curve(path: Path, step: int) -> None:
    """Forget what came after a step, so that a training can go on from there.

    Lines that cannot be read are forgotten too: they are no reason not to go on.
    """
    if not path.exists():
        return
    decoder, kept = msgspec.json.Decoder(LossPoint), []
    for line in _complete_lines(path):
        try:
            if decoder.decode(line).step <= step:
                kept.append(line)
        except (msgspec.MsgspecError, ValueError):
            continue
    with replace_file(path) as file:
        file.writelines(kept)


def _complete_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]
