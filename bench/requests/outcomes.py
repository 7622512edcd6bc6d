"""Exit codes of commands, and evaluations that are missing from their results."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import msgspec

from foundation.errors import BenchError, as_user_error


class ExitCode(IntEnum):
    """Exit codes, which are part of the interface: scripts branch on them."""

    OK = 0
    REGRESSION = 1  # like 3 to 5, a verdict of `check`; see bench/gate/decision.py
    BAD_INPUT = 2
    INCONCLUSIVE = 3
    MISSING = 4  # also of `run`, if some evaluations failed
    DRIFT = 5
    INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class MissingEvaluation(msgspec.Struct, frozen=True):
    """An evaluation that failed.

    Attributes:
        collection: name of the collection, or the typed name if it could not be opened.
        model: name of the model; "" if the collection failed for all models.
        reason: message of the error.
        hint: advice; may be empty.
    """

    collection: str
    model: str
    reason: str
    hint: str = ""


class MissingEvaluations:
    """Errors of several evaluations, collected in ``missing`` so that the others can continue.

    Args:
        stop: raise the error instead, for a single evaluation.
        listed: the report lists collections that fail for all models, so they are not warned of.
    """

    def __init__(self, stop: bool = False, listed: bool = False) -> None:
        self.missing: list[MissingEvaluation] = []
        self._stop = stop
        self._listed = listed

    @contextmanager
    def catch(self, collection: str, model: str = "") -> Iterator[None]:
        """Catch an error of the block, record it for ``collection`` and ``model``, and warn.

        Only bad input and failures of the machine are caught, such as a full disk or a lack of
        memory.
        """
        try:
            yield
        except BrokenPipeError:  # the reader of our output has closed it
            raise
        except Exception as error:
            known = as_user_error(error)
            if known is None or self._stop:
                raise
            reason = str(known).removeprefix(f"{collection}: ")
            self.missing.append(MissingEvaluation(collection, model, reason, known.hint))
            subject = f"{model} on {collection}" if model else collection
            advice = f"\n  {known.hint}" if known.hint else ""
            if model or not self._listed:
                print(f"warning: {subject} is not evaluated: {reason}{advice}", file=sys.stderr)

    @property
    def reasons(self) -> dict[str, str]:
        """Reason of the last error on each collection."""
        return {missing.collection: missing.reason for missing in self.missing}

    def require_any(self, left: bool) -> None:
        """Raise the reason of the first error if nothing is ``left``, after warnings of others."""
        if self.missing and not left:
            first, *others = self.missing
            for gap in others:
                if self._listed and not gap.model:
                    print(f"warning: {gap.collection}: {gap.reason}", file=sys.stderr)
            problem = f"nothing was evaluated; {first.collection}: {first.reason}"
            raise BenchError(problem, first.hint)


class RecordedWarnings(logging.Handler):
    """Logging handler that records the text of each warning once, inside ``with``."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: dict[str, None] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """Recorded warnings in order."""
        return tuple(self._texts)

    def emit(self, record: logging.LogRecord) -> None:
        """Record the warning of ``record``."""
        self._texts[record.getMessage()] = None

    def __enter__(self) -> "RecordedWarnings":
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
