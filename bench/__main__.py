"""The command line, ``python -m bench``, which exits with the code of the command."""

import atexit
import os
import sys
from typing import NoReturn

from bench.cli.terminal import final_exit_code, guard_streams, run_guarded
from foundation.machine import let_openblas_use_avx512


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its `ExitCode`. Bad input is one message on stderr."""

    def run() -> int:
        from bench.cli.main import run_command  # Ctrl-C while it is imported is handled, too

        return run_command(arguments)

    with guard_streams() as stdout:
        return final_exit_code(run_guarded(run), stdout)


def command_line() -> NoReturn:
    """Run the command that was typed, and end the process with its exit code.

    Destructors of C++ libraries run after Python's exit handlers, and one that aborts (as Arrow's
    do now and then while a thread starts) would replace the code: the handler that is registered
    first, and so called last, leaves before them.
    """
    let_openblas_use_avx512()
    codes: list[int] = []
    atexit.register(lambda: codes and os._exit(codes[0]))
    codes.append(main())
    sys.exit(codes[0])


if __name__ == "__main__":
    command_line()
