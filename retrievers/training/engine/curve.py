"""Loss curve of a training: a JSON Lines file that grows during the training."""

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
    """Means over the steps since the previous point.

    Attributes:
        step: last of these steps, from 1.
        losses: ``loss`` and its components, by name.
        lr: learning rate of the last step.
        seconds: duration of these steps.
        tokens: tokens that this process read in these steps, without padding.
    """

    step: int
    losses: dict[str, float]
    lr: float
    seconds: float
    tokens: int


@dataclass
class LossMeter:
    """Sums of losses and tokens since the last point, kept on the device.

    Reading a value from a GPU waits for pending work, so it is done only once per point.

    Attributes:
        sums: sum of each loss over the batches, by name.
        batches: number of batches.
        tokens: sum of tokens. None before the first batch.
        since: time of the last point, from ``time.perf_counter``.
    """

    sums: "dict[str, Tensor]" = field(default_factory=dict)
    batches: int = 0
    tokens: "Tensor | None" = None
    since: float = field(default_factory=time.perf_counter)

    def add(self, losses: "Mapping[str, Tensor]", real: "Tensor") -> None:
        """Add one forward pass.

        Args:
            losses: losses by name, scalars.
            real: mask of tokens that are not padding, or their count.
        """
        for name, loss in losses.items():
            value = loss.detach()
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.tokens = real.sum() + (0 if self.tokens is None else self.tokens)
        self.batches += 1

    @property
    def finite(self) -> bool:
        """True if all losses since the last point are finite."""
        return all(bool(total.isfinite().all()) for total in self.sums.values())

    def take_point(self, step: int, lr: float) -> LossPoint:
        """Return the means since the last point and reset the meter.

        Args:
            step: number of the last step.
            lr: learning rate of that step.
        """
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
    """Append ``point`` to the file ``path``."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(point) + b"\n")


def read_curve(path: Path) -> list[LossPoint]:
    """Read all points of the loss curve ``path``, at least one.

    An incomplete last line, left by a killed training, is skipped.

    Raises:
        BenchError: If the file is missing, empty or not a loss curve.
    """
    try:
        lines = _complete_lines(path)
    except OSError as error:
        raise BenchError(f"cannot read the loss curve {path}: {error.strerror}") from error
    points = [decode_json(line, LossPoint, f"the loss curve {path}") for line in lines]
    if not points:
        raise BenchError(f"{path} is not a loss curve: it has no points")
    return points


def cut_curve(path: Path, step: int) -> None:
    """Remove the points after ``step`` from the file ``path``, so that a training can resume there.

    Damaged lines are removed as well.
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
