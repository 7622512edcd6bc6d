"""Exit codes of the command line."""

from enum import IntEnum


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
