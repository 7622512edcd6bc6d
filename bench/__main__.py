"""``python -m bench``: the command line; its exit code is the command's decision."""

import sys

from bench.cli.boundary import guarded
from bench.cli.terminal import exit_code, terminal


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        An `ExitCode`. Bad input is one message on stderr, never a traceback.

    Raises:
        SystemExit: the arguments are not those of a command, or only help was asked for.
    """

    def run() -> int:
        from bench.cli.main import run_command  # Ctrl-C while it is imported is handled, too

        return run_command(arguments)

    with terminal() as stdout:
        return exit_code(guarded(run), stdout)


if __name__ == "__main__":
    sys.exit(main())
