"""Limits of a check, imported without NumPy."""

from dataclasses import dataclass

from foundation.errors import BenchError

WIDEST = {"margin": 0.1, "floor": 0.2, "tolerance": 0.01}


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """Limits of the decision, as described in `bench.requests.deciding.CheckRequest`.

    Raises:
        BenchError: a limit is outside `WIDEST`, so wide that any model would pass.
    """

    margin: float = 0.02
    floor: float = 0.1
    expect_same: bool = False
    tolerance: float = 0.0005

    def __post_init__(self) -> None:
        for name, most in WIDEST.items():
            if not 0 <= getattr(self, name) <= most:
                raise BenchError(
                    f"--{name} {getattr(self, name)} is outside 0 to {most}",
                    f"Use --{name} with a value from 0 to {most}.",
                )
