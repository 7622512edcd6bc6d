"""Exceptions become messages and exit codes here, and nowhere else."""

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from bench.cli.terminal import as_typed
from bench.exit_codes import ExitCode
from foundation.errors import BenchError, as_bad_input
from foundation.printable import shortened


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
        known = as_bad_input(error)
        return _refuse(known) if known else _internal_error(error)


def _refuse(error: BenchError) -> int:
    print(f"error: {as_typed(shortened(str(error)))}", file=sys.stderr)
    if error.hint:
        print(f"  try: {as_typed(shortened(error.hint))}", file=sys.stderr)
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
        f"internal error: {type(error).__name__}: {shortened(str(error))}\n"
        f"  this is a defect of this program. {report}",
        file=sys.stderr,
    )
    return ExitCode.INTERNAL_ERROR
