"""Output of commands on stdout and stderr, and conversion of errors to messages and exit codes.

A command continues to its end if its reader goes away (``| head``). Its exit code does not depend
on the output, except that a lost output is not a success. Control characters in names are escaped.
"""

import ctypes
import errno
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec

from bench.requests.outcomes import ExitCode
from foundation.errors import BenchError, DriftError, as_user_error, make_printable

MODULE = "python -m bench"
_READER_LEFT = (errno.EPIPE, errno.EBADF, errno.ESHUTDOWN)  # or closed the stream
_TABLE = re.compile(r"(?:^\|.*\|(?:\n|\Z)){2,}", re.MULTILINE)
_CURSOR_MOVE = re.compile("\n*(?:\x1b\\[A)*")  # how tqdm moves between bars


class TerminalStream:
    """Text stream that survives its reader: after a ``failure``, further output is dropped."""

    def __init__(self, stream: TextIO, shows_bars: bool) -> None:
        self._stream = stream
        self._shows_bars = shows_bars
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write ``text`` with control characters escaped, and return its length."""
        if self.failure is None:
            fitted = text
            if not self._shows_bars and not self._stream.closed and self._stream.isatty():
                fitted = fit_tables(text, shutil.get_terminal_size().columns)
            with self._catch_failure():
                self._stream.write(self._as_printable(fitted))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        if self.failure is None:
            with self._catch_failure():
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def moved_to(self, number: int) -> Iterator[None]:
        """Write to another descriptor in the block."""
        before = self._stream
        self._stream = os.fdopen(
            number, "w", encoding=before.encoding, errors=before.errors, closefd=False
        )
        try:
            yield
        finally:
            self.flush()
            self._stream = before

    def _as_printable(self, text: str) -> str:
        """Escape control characters, except in progress bars."""
        if self._shows_bars and _CURSOR_MOVE.fullmatch(text):
            return text
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        if self._shows_bars and text.startswith("\r"):  # a bar, drawn anew
            return "\r" + make_printable(text[1:], encoding)
        return make_printable(text, encoding)

    @contextmanager
    def _catch_failure(self) -> Iterator[None]:
        """Record an error of the stream instead of raising it."""
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


def fit_tables(text: str, width: int) -> str:
    """Return ``text`` with each Markdown table that is wider than ``width`` in several parts.

    The parts stand one below another, and each begins with the table's first column.
    """
    return _TABLE.sub(lambda table: _fit_table(table[0], width), text)


def _fit_table(table: str, width: int) -> str:
    lines = table.splitlines()
    rows = [re.split(r"(?<!\\)\|", line[1:-1]) for line in lines]
    is_table = len(set(map(len, rows))) == 1 and len(rows[0]) > 1
    if len(lines[0]) <= width or not is_table:
        return table
    first, *others = zip(*rows, strict=True)
    parts: list[list[Sequence[str]]] = []
    room = 0
    for column in others:
        needed = len(column[0]) + 1
        if not parts or needed > room:
            parts.append([first])
            room = width - len(first[0]) - 2
        parts[-1].append(column)
        room -= needed
    return "\n\n".join(
        "\n".join(f"|{'|'.join(cells)}|" for cells in zip(*part, strict=True)) for part in parts
    ) + ("\n" if table.endswith("\n") else "")


@contextmanager
def reserve_stdout(wanted: bool) -> Iterator[None]:
    """Reserve stdout for `print_document`, if ``wanted``. Anything else is printed on stderr.

    Libraries written in C print to the descriptor, so it is redirected, and documents are written
    to a duplicate of it.
    """
    stdout = sys.stdout
    if not (wanted and isinstance(stdout, TerminalStream)):
        yield
        return
    stdout.flush()
    sys.stdout = cast(TextIO, _DivertedStream(sys.stderr, stdout))
    try:
        with _redirect_descriptor(stdout, sys.stderr):
            yield
    finally:
        sys.stdout = cast(TextIO, stdout)


class _DivertedStream:
    """Stream that writes to stderr while ``document``, the guarded stdout, is reserved."""

    def __init__(self, stderr: TextIO, document: TerminalStream) -> None:
        self._stderr, self.document = stderr, document

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stderr, name)


@contextmanager
def _redirect_descriptor(stdout: TerminalStream, stderr: TextIO) -> Iterator[None]:
    """Let the descriptor of ``stdout`` lead to ``stderr``, and ``stdout`` to a duplicate of it."""
    try:
        number, other = stdout.fileno(), stderr.fileno()
    except (OSError, ValueError):  # streams in memory
        yield
        return
    duplicate = os.dup(number)
    os.dup2(other, number)
    try:
        with stdout.moved_to(duplicate):
            yield
    finally:
        with suppress(OSError, AttributeError):  # what C libraries still hold back
            ctypes.CDLL(None).fflush(None)
        os.dup2(duplicate, number)
        os.close(duplicate)


@contextmanager
def guard_streams() -> Iterator[TerminalStream]:
    """Replace stdout and stderr by guarded streams, and yield stdout."""
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


def as_typed(text: str) -> str:
    """Return ``text`` with commands as the program was called, such as ``bench``."""
    return text.replace(MODULE, program_name())


def program_name() -> str:
    """Return the words with which the program was called."""
    return "bench" if Path(sys.argv[0]).stem == "bench" else MODULE


def final_exit_code(decision: int, stdout: TerminalStream) -> int:
    """Return the exit code ``decision``, or that of bad input if the output of a success was lost.

    A reader that left is not a failure.
    """
    stdout.flush()
    failure = stdout.failure
    if failure is None or failure.errno in _READER_LEFT:
        return decision
    print(f"error: the output is incomplete: {failure.strerror}", file=sys.stderr)
    return decision or ExitCode.BAD_INPUT


def _reopen_closed_streams() -> None:
    """Open streams that the caller closed (``>&-``), or the next file would become stdout."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _open_null_device() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123


def run_guarded(command: Callable[[], int]) -> int:
    """Run ``command`` and return its exit code.

    Bad input is printed as one message, a bug as a traceback.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print("\ninterrupted; to continue, repeat the command", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception as error:
        known = as_user_error(error)
        return _print_bad_input(known) if known else _print_internal_error(error)


def _print_bad_input(error: BenchError) -> int:
    print(_wrap(f"error: {as_typed(str(error))}"), file=sys.stderr)
    hint = error.hint or "Fix it and run the command again."
    print(_wrap(f"  {as_typed(hint)}"), file=sys.stderr)
    return ExitCode.DRIFT if isinstance(error, DriftError) else ExitCode.BAD_INPUT


def _wrap(text: str) -> str:
    """Wrap a message at the width of the terminal, except commands, which are copied."""
    if not sys.stderr.isatty() or "`" in text:
        return text
    wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, subsequent_indent="  ")
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return "\n".join(map(wrapper.fill, text.split("\n")))


def _print_internal_error(error: Exception) -> int:
    what = f"{traceback.format_exc()}\ninternal error: {type(error).__name__}: {error}"
    advice = "This is a bug in bench. Please report it with all lines above and your command"
    print(f"{what}\n  {advice}: {sys.argv[1:]}", file=sys.stderr)
    return ExitCode.INTERNAL_ERROR


def format_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` of text as aligned columns, the last one wrapped to fit a terminal."""
    from tabulate import tabulate

    limits: list[int | None] = [None] * len(rows[0])
    if sys.stdout.isatty():
        others = (max(map(len, column)) + 2 for column in zip(*rows, strict=True))
        limits[-1] = max(20, shutil.get_terminal_size().columns - sum(list(others)[:-1]))
    text = str(tabulate(rows, tablefmt="plain", disable_numparse=True, maxcolwidths=limits))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def as_json(document: Any) -> str:
    """Return ``document`` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def print_result(json: bool, document: Any, text: str) -> int:
    """Print ``document`` as JSON with ``--json``, else ``text``, and return its exit code.

    A document without an exit code is a success. Nothing is printed for an empty text.
    """
    if json or text:
        print_document(as_json(document) if json else text.removesuffix("\n"))
    return int(getattr(document, "exit_code", ExitCode.OK))


def print_document(text: str, end: str = "\n") -> None:
    """Print what a command is asked for on stdout, also while it is reserved."""
    print(text, end=end, file=getattr(sys.stdout, "document", sys.stdout), flush=True)
