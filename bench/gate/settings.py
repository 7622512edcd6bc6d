"""Settings of a check, which are options of the command line: imported without NumPy."""

from dataclasses import dataclass
from typing import Literal

from foundation.errors import BenchError

Rule = Literal["loss", "margin"]


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """The decision rule of ``check``, and its limits.

    Attributes:
        rule: loss fails on a significant loss; margin (non-inferiority) passes only where a
            loss beyond --margin is ruled out.
        margin: Largest loss of the mean that rule margin accepts.
        floor: A loss beyond this on any collection fails under both rules.
        expect_same: Expect the scores of the baseline: a difference in either direction is
            drift (exit code 5).
        tolerance: Largest difference that --expect-same accepts; published scores state their
            own.

    Raises:
        BenchError: a limit is not within 0 to 1.
    """

    rule: Rule = "loss"
    margin: float = 0.01
    floor: float = 0.1
    expect_same: bool = False
    tolerance: float = 0.0005

    def __post_init__(self) -> None:
        for name in ("margin", "floor", "tolerance"):
            if not 0 <= getattr(self, name) <= 1:
                raise BenchError(f"--{name} {getattr(self, name)} is not from 0 to 1")
