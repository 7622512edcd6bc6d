"""Errors with a message and a hint, and text that is safe to print on a terminal."""

import difflib
import errno
import importlib
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any


class BenchError(Exception):
    """Bad input, such as an unknown name or a damaged file. Passwords in URLs are hidden.

    Attributes:
        hint: what to type or change next; may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(hide_passwords(message))
        self.hint = hide_passwords(hint)


class DriftError(BenchError):
    """A server whose vectors differ from the stored ones."""


class MissingFileError(BenchError):
    """A file that a collection needs and does not have."""


class UnavailableError(BenchError):
    """Data that stored scores were computed from, and that this machine does not have."""


_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\b[0-9]+\b|0x[0-9a-f]+")  # in a message
BadLines = dict[str, tuple[BenchError, int]]  # first error and count by kind
_bad_lines: ContextVar[BadLines | None] = ContextVar("bad_lines", default=None)


@contextmanager
def collect_errors() -> Iterator[BadLines]:
    """Count wrong lines by kind and skip them, instead of raising at the first one."""
    bad_lines: BadLines = {}
    token = _bad_lines.set(bad_lines)
    try:
        yield bad_lines
    finally:
        _bad_lines.reset(token)


def report_error(error: BenchError) -> None:
    """Raise ``error``, or count it within `collect_errors`."""
    bad_lines = _bad_lines.get()
    if bad_lines is None:
        raise error
    kind = _VALUES.sub("", str(error))
    first, count = bad_lines.get(kind, (error, 0))
    bad_lines[kind] = (first, count + 1)


def errors_were_counted() -> bool:
    """Return whether `collect_errors` has counted a wrong line so far."""
    return bool(_bad_lines.get())


def raise_collected(items: Iterable[Any]) -> Iterator[Any]:
    """Yield ``items``, then raise if `collect_errors` counted a wrong line among them."""
    yield from items
    if errors_were_counted():
        raise BenchError("lines of the documents are wrong, so their ids were not checked")


def import_package(name: str, problem: str, hint: str) -> Any:
    """Import a package that not every installation has, or raise ``problem`` and the reason."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BenchError(f"{problem}: {error}", hint) from error


@contextmanager
def wrap_errors(problem: str, hint: str) -> Iterator[None]:
    """Replace any error of other people's code in the block by ``problem`` with its message.

    transformers, torch, safetensors and adapters raise nearly anything for a damaged file.
    """
    try:
        yield
    except BenchError:
        raise
    except (Exception, SystemExit) as error:
        line = f"{type(error).__name__}: {first_line(error)}"
        raise BenchError(f"{problem}: {line}", hint) from error


def first_line(error: BaseException) -> str:
    """Return the first line of the message of ``error``, or its class name if it is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def did_you_mean(wrong: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return ``Did you mean A, B or C?`` with the ``known`` names closest to a ``wrong`` one.

    Letter case is ignored. If no name is close, return ``otherwise``.
    """
    close = closest_names(wrong, known)
    names = " or ".join(filter(None, (", ".join(close[:-1]), *close[-1:])))
    return f"Did you mean {names}?" if close else otherwise


def closest_names(wrong: str, known: Iterable[str]) -> list[str]:
    """Return at most three of the ``known`` names, most similar to ``wrong`` first."""
    by_lower = {name.lower(): name for name in sorted(known, reverse=True)}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=3, cutoff=0.6)
    return [by_lower[name] for name in close]


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_FREE_SPACE_HINT = (
    "Free some space, or choose another disk with --results, --out or --cache-dir, and repeat the "
    "command: finished work is kept."
)
_HINTS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Change its permissions, or choose another path."),
    errno.EROFS: "Choose a writable folder with --results, --out or --cache-dir.",
    errno.ENOENT: "Check the path.",
    errno.EISDIR: "Name a file.",
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "Choose a folder: part of this path is a file."),
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EMFILE: "Allow more open files: ulimit -n 4096",
}
# Messages of safetensors and Arrow. The last two are of torch.save and numpy, which give no reason.
_DISK_FULL_TEXT = re.compile(
    "no space left on device|disk quota exceeded|file too large"
    r"|unexpected pos|requested and \d+ written",
    re.IGNORECASE,
)
# Messages of torch, FAISS, CUDA's libraries and the C library, raised as other classes.
_OUT_OF_MEMORY_TEXTS = (
    *("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory"),
    *("bad_alloc", "alloc_failed"),
)


class WorkerError(Exception):
    """An unforeseen error in another process, with the traceback ``trace`` as a note."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message, trace)
        self.trace = trace
        self.add_note(trace)

    def __str__(self) -> str:
        return str(self.args[0])


WRITING = ".writing-"  # in the names of temporary files


@contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Name ``path`` in any `OSError` of the block that names no file or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename is None or WRITING in os.fsdecode(error.filename):
            error.filename = str(path)
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that memory ran out, on the CPU or the GPU."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY_TEXTS)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether ``error``, or an error that caused it, says that a disk is full."""
    while error is not None:
        full = isinstance(error, OSError) and error.errno in _DISK_FULL
        if full or _DISK_FULL_TEXT.search(str(error)):
            return True
        error = error.__cause__
    return False


def as_user_error(error: Exception) -> BenchError | None:
    """Return the message to show for ``error``, or None if it is a defect of this program."""
    if isinstance(error, BenchError):
        return error
    if isinstance(error, OSError):
        without_name = (*_DISK_FULL, errno.EMFILE)  # these are never the program's fault
        is_of_file = error.filename is not None or error.errno in without_name
        return file_error(error) if is_of_file else None
    if _DISK_FULL_TEXT.search(str(error)):
        return BenchError(first_line(error), _FREE_SPACE_HINT)
    if is_out_of_memory(error):
        return BenchError(
            f"not enough memory: {first_line(error)}",
            "Use a smaller --max-memory, or fewer collections or documents per query.",
        )
    if isinstance(error, RecursionError):
        return BenchError("a file is nested too deeply to be read", "Check the file named last.")
    if isinstance(error, UnicodeEncodeError):
        return BenchError(
            f"{error.object[:200]!r} cannot be written as {error.encoding}",
            "Rename it in UTF-8, or set PYTHONUTF8=1 if the locale has another encoding.",
        )
    return None


def as_picklable_error(error: Exception) -> Exception:
    """Return an exception that can be sent to another process.

    Bad input keeps its hint. Any other error becomes a `WorkerError` with its traceback.
    """
    known = as_user_error(error)
    if known:
        return BenchError(str(known), known.hint)
    line = f"{type(error).__name__}: {first_line(error)}"
    return WorkerError(line, "".join(traceback.format_exception(error)))


def file_error(error: OSError) -> BenchError:
    """Return a message for an error of the operating system: the file, the reason and a hint."""
    place = "a file" if error.filename is None else str(error.filename)
    reason = error.strerror or next(map(str, error.args), type(error).__name__)
    full = error.errno in _DISK_FULL or _DISK_FULL_TEXT.search(reason)
    hint = _FREE_SPACE_HINT if full else _HINTS.get(error.errno or 0, "")
    return BenchError(f"{place}: {reason}", hint)


# Control characters except tab and newline, characters that change the writing direction or end a
# line, and the surrogates with which Python represents the bytes of a path that is not UTF-8.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_PASSWORD = re.compile(r"(?<!abfs)://[^/\s]+(?=@)")  # in abfs URLs it is the container
_NOT_ASCII = re.compile("[\x00-\x08\x0b-\x1f\x7f-\U0010ffff]")


def make_printable(text: str, encoding: str = "utf-8") -> str:
    r"""Return ``text`` with an escape such as ``\u001b`` for each character a terminal would obey.

    JSON remains valid JSON with the same content. Passwords in URLs are hidden. Unless the
    ``encoding`` of the terminal is UTF-8, all non-ASCII characters are escaped.
    """
    text = hide_passwords(text)
    if text.isascii() and text.isprintable():
        return text
    shows_all = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return (_CONTROLS if shows_all else _NOT_ASCII).sub(lambda match: _escape(match[0]), text)


def hide_passwords(text: str) -> str:
    """Return ``text`` with ``***`` for the user and password in each URL."""
    return _PASSWORD.sub("://***", text) if "@" in text and "://" in text else text


def to_one_line(text: str) -> str:
    """Return ``text`` on one line with control characters escaped, for a cell or a heading."""
    return make_printable(" ".join(text.split()))


def format_names(names: Sequence[str], limit: int = 4) -> str:
    """Return the first ``limit`` of ``names`` and a count of the others: ``a, b and 3 more``."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def format_count(count: int, one: str, many: str) -> str:
    """Return ``count`` with its noun, ``one`` or ``many``: ``1 query``, ``1,000 queries``."""
    return f"{count:,} {one if count == 1 else many}"


def _escape(text: str) -> str:
    r"""Return JSON escapes ``\uXXXX`` of a text, two for a character beyond the basic plane."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
