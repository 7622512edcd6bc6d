"""Errors of the pipeline and the exit codes of the command line."""

from enum import IntEnum


class BenchError(Exception):
    """Bad input to an evaluation: what was asked, what was found.

    ``hint`` is what to type or change next; it may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ExitCode(IntEnum):
    """Part of the interface: scripts branch on these."""

    OK = 0
    REGRESSION = 1  # this and 3 to 5 are decisions of `check`, see bench/decisions/verdicts.py
    BAD_INPUT = 2
    INCONCLUSIVE = 3
    MISSING = 4
    DRIFT = 5
    INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it
