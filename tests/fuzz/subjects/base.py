"""What every kind of input has: sound files, a mutation, a command, and a judgement."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.fuzz import oracle
from tests.fuzz.mutations import mutate_tree

CLOSE = 1e-9
VECTORS_CLOSE = 2e-4  # scores of a network by another program, in float32


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str

    def document(self) -> Any:
        """The JSON on stdout."""
        return json.loads(self.stdout)


class Subject(ABC):
    """One kind of input. Its folder has all it needs, and is copied for each mutation."""

    name: ClassVar[str]
    codes: ClassVar[tuple[int, ...]] = (0, 2)

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Write sound input."""

    def mutate(self, rng: Random, folder: Path) -> str:
        """Change it; says what was done."""
        return mutate_tree(rng, folder / "input")

    @abstractmethod
    def command(self, rng: Random, folder: Path) -> Sequence[str] | Callable[[], Any]:
        """What is run on it: words of the command line, or a function of the program."""

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        """What is wrong about accepted input; "" where nothing is.

        Args:
            before: the sound input, after its own run.
        """
        return ""


def differing(stated: dict[str, float], ranking: oracle.Ranking, grades: oracle.Grades) -> str:
    """Measures that are not the means of a ranking."""
    for measure, value in stated.items():
        expected = oracle.mean(measure, ranking, grades)
        if expected is not None and not abs(value - expected) < CLOSE:
            return f"{measure} is {value}, and should be {expected}"
    return ""


def only_run(out: Path) -> Path:
    """The one run file below a folder."""
    (path,) = out.rglob("run.arrow")
    return path


def same_scores(stated: oracle.Scored, expected: oracle.Scored, within: float) -> str:
    """The first of the scored pairs that differs."""
    if stated.keys() != expected.keys():
        others = sorted(stated.keys() ^ expected.keys())
        return f"{len(others)} pairs are scored by one of the two only, such as {others[0]!r}"
    for pair, score in stated.items():
        if not abs(score - expected[pair]) <= within:
            return f"{pair!r} has {score}, and should have {expected[pair]}"
    return ""
