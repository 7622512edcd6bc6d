"""Settings of a check, which are also options of the command line. Imported without NumPy."""

from dataclasses import dataclass
from typing import Literal

from foundation.errors import BenchError

Rule = Literal["loss", "margin"]
WIDEST = {"margin": 0.1, "floor": 0.2, "tolerance": 0.01}


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """Decision rule of ``check``, and its limits.

    Attributes:
        rule: loss fails on a significant loss; margin (non-inferiority) passes only if a loss
            beyond --margin is ruled out.
        margin: Largest loss of the mean that rule margin accepts.
        floor: No candidate passes that lost more than this on any collection, under either rule.
        expect_same: Expect the baseline's scores: a difference in either direction is drift (exit
            code 5).
        tolerance: Largest difference that --expect-same accepts; published scores state their own.

    Raises:
        BenchError: a limit is outside `WIDEST`, so wide that any model would pass.
    """

    rule: Rule = "loss"
    margin: float = 0.01
    floor: float = 0.1
    expect_same: bool = False
    tolerance: float = 0.0005

    def __post_init__(self) -> None:
        for name, most in WIDEST.items():
            if not 0 <= getattr(self, name) <= most:
                raise BenchError(f"--{name} {getattr(self, name)} is outside 0 to {most}")
