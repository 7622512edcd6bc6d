"""stdout and stderr while a command runs, and what ends it: errors become messages and exit codes.

What is printed never decides how a command ends.

A reader that goes away (``| head``) is no failure, and the command goes on to its end. Names that
come from files reach the terminal as text that it shows and does not obey.
"""

import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec

from bench.outcomes import ExitCode
from foundation.errors import BenchError, as_sentence, as_user_error
from foundation.printable import make_printable, shorten_words

MODULE = "python -m bench"
_READER_LEFT = (errno.EPIPE, errno.EBADF, errno.ESHUTDOWN)  # or closed the stream
_CURSOR_MOVE = re.compile("\n*(?:\x1b\\[A)*")  # how tqdm moves between bars


class TerminalStream:
    """A text stream that outlives its reader: after a failure, what is written is dropped.

    Attributes:
        failure: why the rest was dropped; None while everything was written.
    """

    def __init__(self, stream: TextIO, shows_bars: bool) -> None:
        self._stream = stream
        self._shows_bars = shows_bars
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write text as `make_printable` shows it."""
        if self.failure is None:
            with self._catch_failure():
                self._stream.write(self._as_printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        if self.failure is None:
            with self._catch_failure():
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _as_printable(self, text: str) -> str:
        if self._shows_bars and _CURSOR_MOVE.fullmatch(text):
            return text
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        if self._shows_bars and text.startswith("\r"):  # a bar, drawn anew
            return "\r" + make_printable(text[1:], encoding)
        return make_printable(text, encoding)

    @contextmanager
    def _catch_failure(self) -> Iterator[None]:
        try:
            yield
        except ValueError:  # closed by the program itself
            self.failure = OSError(errno.EBADF, os.strerror(errno.EBADF))
        except OSError as error:
            self.failure = error
            # Python writes what is left in the stream's buffer when it ends, and fails again.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextmanager
def guard_streams() -> Iterator[TerminalStream]:
    """Stand between the program and its stdout and stderr; yields stdout."""
    _reopen_closed_streams()
    before = sys.stdout, sys.stderr
    stdout = TerminalStream(sys.stdout or _open_null_device(), shows_bars=False)
    stderr = TerminalStream(sys.stderr or _open_null_device(), shows_bars=True)
    sys.stdout, sys.stderr = cast(TextIO, stdout), cast(TextIO, stderr)
    try:
        yield stdout
    finally:
        stdout.flush()  # under --help, too, which ends with SystemExit
        stderr.flush()
        sys.stdout, sys.stderr = before


class RecordedWarnings(logging.Handler):
    """Keep the text of each warning that is logged inside ``with``, once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: dict[str, None] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """The warnings, in their order."""
        return tuple(self._texts)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one warning."""
        self._texts[record.getMessage()] = None

    def __enter__(self) -> "RecordedWarnings":
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


def as_typed(text: str) -> str:
    """Text with its commands as the program was called: ``python -m bench``, or ``bench``."""
    return text.replace(MODULE, program_name())


def program_name() -> str:
    """The words that the user types to call this program."""
    return "bench" if Path(sys.argv[0]).stem == "bench" else MODULE


def final_exit_code(decision: int, stdout: TerminalStream) -> int:
    """The command's own decision; a lost output is said, and makes no success."""
    stdout.flush()
    failure = stdout.failure
    if failure is None or failure.errno in _READER_LEFT:
        return decision
    print(f"error: the output is not complete: {failure.strerror}", file=sys.stderr)
    return decision or ExitCode.BAD_INPUT


def _reopen_closed_streams() -> None:
    """Open what the caller closed (``>&-``): else the next file opened is taken for stdout."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _open_null_device() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123


def run_guarded(command: Callable[[], int]) -> int:
    """Run a command.

    Returns:
        An `ExitCode`. Bad input is one message on stderr; a traceback stands there only where the
        program itself is at fault.
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
        known = as_user_error(error)
        return _print_bad_input(known) if known else _print_internal_error(error)


def _print_bad_input(error: BenchError) -> int:
    print(f"error: {as_typed(shorten_words(str(error)))}", file=sys.stderr)
    hint = error.hint or "correct it and repeat the command"
    print(f"  {as_typed(shorten_words(as_sentence(hint)))}", file=sys.stderr)
    return ExitCode.BAD_INPUT


def _print_internal_error(error: Exception) -> int:
    print(
        f"{traceback.format_exc()}\n"
        f"internal error: {type(error).__name__}: {shorten_words(str(error))}\n"
        f"  this is a defect of this program. Please report it with all lines above, and with "
        f"what was typed: {sys.argv[1:]}",
        file=sys.stderr,
    )
    return ExitCode.INTERNAL_ERROR


def format_columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns without a frame."""
    from tabulate import tabulate

    text = str(tabulate(rows, tablefmt="plain", disable_numparse=True))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def print_next_command(what: str, command: str) -> None:
    """The command to type next, by the name under which the program was called."""
    print(as_typed(f"{what}: {command}"))


def as_json(document: Any) -> str:
    """A document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def print_json(document: Any) -> None:
    """One document on stdout."""
    print(as_json(document))
