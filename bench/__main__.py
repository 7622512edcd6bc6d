"""``python -m bench``: runs the command line and turns what went wrong into an exit code."""

import errno
import os
import sys
import tempfile
import traceback
from pathlib import Path

from bench.exit_codes import ExitCode
from foundation.errors import BenchError


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        An `ExitCode`. Bad input is one message on stderr, never a traceback.
    """
    from bench.cli.main import run_command

    try:
        return run_command(arguments)
    except BenchError as error:
        return _refuse(str(error), error.hint)
    except KeyboardInterrupt:
        print(
            "\ninterrupted: what was finished is kept; type the same command to go on",
            file=sys.stderr,
        )
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout went away (`| head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            return _internal_error(error)
        return _refuse(
            f"{error.filename or 'a file'}: {error.strerror}",
            "make room or pick another place with --out and --cache-dir",
        )
    except Exception as error:
        return _internal_error(error)


def _refuse(message: str, hint: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"  try: {hint}", file=sys.stderr)
    return ExitCode.BAD_INPUT


def _internal_error(error: Exception) -> int:
    """Keep the traceback in a file: it is for whoever mends this, not for the user."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="bench-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"arguments: {sys.argv[1:]}\n\n{traceback.format_exc()}")
    print(
        f"internal error: {type(error).__name__}: {error}\n"
        f"  this is a defect of this program. Please report it with the file {Path(file.name)}",
        file=sys.stderr,
    )
    return ExitCode.INTERNAL_ERROR


if __name__ == "__main__":
    sys.exit(main())
