"""How a command ends: its exit code, and the evaluations that could not be had."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import msgspec

from foundation.errors import BenchError, as_sentence, as_user_error


class ExitCode(IntEnum):
    """Part of the interface: scripts branch on these."""

    OK = 0
    REGRESSION = 1  # this and 3 to 5 are decisions of `check`, see bench/gate/verdicts.py
    BAD_INPUT = 2
    INCONCLUSIVE = 3
    MISSING = 4  # of `run`, too: of several evaluations, some could not be had
    DRIFT = 5
    INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class MissingEvaluation(msgspec.Struct, frozen=True):
    """An evaluation that could not be had.

    Attributes:
        collection: its name, or what was typed where it could not be opened.
        model: "" if the collection could not be had for any.
        hint: what to type or change next; may be empty.
    """

    collection: str
    model: str
    reason: str
    hint: str = ""


class MissingEvaluations:
    """The gaps of several evaluations: ``missing`` grows as blocks fail."""

    def __init__(self, stop: bool = False) -> None:
        """With ``stop``, the first failure is raised instead of kept."""
        self.missing: list[MissingEvaluation] = []
        self._stop = stop

    @contextmanager
    def catch(self, collection: str, model: str = "") -> Iterator[None]:
        """Keep the reason why the block failed, if it fails, and say it.

        Kept are bad input and failures of the machine, such as a full disk or a lack of memory. Any
        other error is a defect of this program.

        Raises:
            Exception: the block failed, and ``stop`` was asked for.
        """
        try:
            yield
        except BrokenPipeError:  # the reader of our own output went away
            raise
        except Exception as error:
            known = as_user_error(error)
            if known is None or self._stop:
                raise
            self._add(collection, model, known)

    @property
    def reasons(self) -> dict[str, str]:
        """Why there is nothing, by collection."""
        return {missing.collection: missing.reason for missing in self.missing}

    def require_any(self, left: bool) -> None:
        """Refuse to go on where nothing is left.

        Raises:
            BenchError: there are gaps, and ``left`` is False; with the first reason.
        """
        if self.missing and not left:
            first = self.missing[0]
            raise BenchError(
                f"nothing was evaluated; {first.collection}: {first.reason}", first.hint
            )

    def _add(self, collection: str, model: str, error: BenchError) -> None:
        missing = MissingEvaluation(
            collection, model, str(error).removeprefix(f"{collection}: "), error.hint
        )
        self.missing.append(missing)
        subject = f"{model} on {collection}" if model else collection
        advice = f"\n  {as_sentence(missing.hint)}" if missing.hint else ""
        print(f"warning: {subject} is not evaluated: {missing.reason}{advice}", file=sys.stderr)
