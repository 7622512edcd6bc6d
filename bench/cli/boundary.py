"""Where exceptions become messages and exit codes: the one place that users meet them."""

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from bench.exit_codes import ExitCode
from foundation.errors import BenchError, first_line
from foundation.os_errors import as_bad_input

_NO_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc", "Cannot allocate memory")


def guarded(command: Callable[[], int]) -> int:
    """Run a command.

    Returns:
        An `ExitCode`. Bad input is one message on stderr; a traceback goes to a file, and only
        where the program itself is at fault.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print(
            "\ninterrupted: what was finished is kept; type the same command to go on",
            file=sys.stderr,
        )
        return ExitCode.INTERRUPTED
    except Exception as error:
        known = bad_input(error)
        return _refuse(known) if known else _internal_error(error)


def bad_input(error: Exception) -> BenchError | None:
    """What an exception says of the input or the machine; None for a defect of this program."""
    if isinstance(error, BenchError):
        return error
    if isinstance(error, OSError):
        return as_bad_input(error)
    if isinstance(error, RecursionError):
        return BenchError("a file is nested too deeply to be read", "see what was opened last")
    if isinstance(error, UnicodeEncodeError):
        text = error.object if len(error.object) <= 200 else f"{error.object[:200]}…"
        return BenchError(
            f"{text!r} cannot be written as {error.encoding}",
            "rename it in UTF-8; where that is not the locale's encoding, set PYTHONUTF8=1",
        )
    if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
        return BenchError(
            f"not enough memory: {first_line(error)}",
            "give it more, or ask for less: --max-memory, a smaller --depth or fewer collections",
        )
    return None


def _refuse(error: BenchError) -> int:
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"  try: {error.hint}", file=sys.stderr)
    return ExitCode.BAD_INPUT


def _internal_error(error: Exception) -> int:
    """Keep the traceback in a file: it is for whoever mends this, not for the user."""
    details = f"arguments: {sys.argv[1:]}\n\n{traceback.format_exc()}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="bench-error-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            file.write(details)
        report = f"Please report it with the file {Path(file.name)}"
    except OSError:
        report = f"Please report it with these lines:\n{details}"
    print(
        f"internal error: {type(error).__name__}: {error}\n"
        f"  this is a defect of this program. {report}",
        file=sys.stderr,
    )
    return ExitCode.INTERNAL_ERROR
