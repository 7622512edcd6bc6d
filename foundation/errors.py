"""Bad input and failures of the machine: one message each, with what to do next."""

import difflib
import errno
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from foundation.printable import hide_passwords


class BenchError(Exception):
    """Bad input.

    Passwords in URLs are masked in the message and in the hint.

    Attributes:
        hint: what to type or change, as a sentence or as a command; see `as_sentence`.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(hide_passwords(message))
        self.hint = hide_passwords(hint)


class MissingFileError(BenchError):
    """A file of a collection that is not there."""


_COMMAND = re.compile(r"(python -m bench|pip install) [^,;()]+")
_PLAIN_WORD = re.compile(r"[a-z]+(?=[ ,:;])(?! =)")  # not batch_size, nor margin = 0.1
_ENDS_IN_WORD = re.compile(r"(^|[\s(])[\w-]+\)?$|`$")  # not in a path, which must be easy to copy


def as_sentence(hint: str) -> str:
    """Return a hint as it is printed below a message: "Run `python -m bench list models`."

    A command stands in backticks after "Run"; other text begins with a capital and ends with a
    full stop.
    """
    text = f"Run `{hint}`" if _COMMAND.fullmatch(hint) else hint
    if _PLAIN_WORD.match(text):
        text = text[0].upper() + text[1:]
    return f"{text}." if _ENDS_IN_WORD.search(text) else text


def first_line(error: BaseException) -> str:
    """First line of another library's error message, or its class where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def did_you_mean(wrong: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean A or B?``, or ``otherwise`` where no known name is close.

    Letter case is ignored.
    """
    by_lower = {name.lower(): name for name in sorted(known, reverse=True)}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(by_lower[name] for name in close)}?" if close else otherwise


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_FREE_SPACE_HINT = (
    "make room, or name another place with --out or --cache-dir, and type the same command: what "
    "is finished is kept"
)
_PERMISSION_HINT = "change its permissions, or name another place"
_HINTS = {
    **dict.fromkeys(_DISK_FULL, _FREE_SPACE_HINT),
    errno.EACCES: _PERMISSION_HINT,
    errno.EPERM: _PERMISSION_HINT,
    errno.EROFS: "name a place that can be written, with --out or --cache-dir",
    errno.ENOENT: "check the path",
    errno.EISDIR: "name a file",
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "a part of this path is a file: name a folder"),
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "allow more open files: ulimit -n 4096",
}
# What safetensors and Arrow say; the last two are torch.save and numpy, which do not say why.
_DISK_FULL_TEXT = re.compile(
    "no space left on device|disk quota exceeded|file too large"
    r"|unexpected pos|requested and \d+ written",
    re.IGNORECASE,
)
# What torch, FAISS, CUDA's libraries and the C library say, in other classes than MemoryError.
_OUT_OF_MEMORY_TEXTS = (
    *("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory"),
    *("bad_alloc", "alloc_failed"),
)


class WorkerError(Exception):
    """Something that nobody foresaw in another process; ``trace`` is the traceback there."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message, trace)
        self.trace = trace
        self.add_note(trace)

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Name ``path`` in an `OSError` of the block.

    What fails while a file is written names none, and what fails under a temporary name names
    that one.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).parent == path.parent:
            error.filename = str(path)
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out, on the CPU or the GPU."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY_TEXTS)


def is_disk_full(error: BaseException | None) -> bool:
    """True if a disk is full: by the error, or by one that it was raised from."""
    while error is not None:
        full = isinstance(error, OSError) and error.errno in _DISK_FULL
        if full or _DISK_FULL_TEXT.search(str(error)):
            return True
        error = error.__cause__
    return False


def as_user_error(error: Exception) -> BenchError | None:
    """The error that a user is told; None for a defect of this program."""
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
            "give it more, or ask for less: --max-memory, a smaller --depth or fewer collections",
        )
    if isinstance(error, RecursionError):
        return BenchError("a file is nested too deeply to be read", "look at the file named last")
    if isinstance(error, UnicodeEncodeError):
        text = error.object if len(error.object) <= 200 else f"{error.object[:200]}…"
        return BenchError(
            f"{text!r} cannot be written as {error.encoding}",
            "rename it in UTF-8; where that is not the locale's encoding, set PYTHONUTF8=1",
        )
    return None


def as_picklable_error(error: Exception) -> Exception:
    """The error as another process can be told of it: bad input with its hint, others as text."""
    known = as_user_error(error)
    if known:
        return BenchError(str(known), known.hint)
    line = f"{type(error).__name__}: {first_line(error)}"
    return WorkerError(line, "".join(traceback.format_exception(error)))


def file_error(error: OSError) -> BenchError:
    """An error of the system as a message: the operation, the file, and what to do."""
    place = "a file" if error.filename is None else str(error.filename)
    reason = error.strerror or next(map(str, error.args), type(error).__name__)
    full = bool(_DISK_FULL_TEXT.search(reason))
    return BenchError(
        f"{place}: {reason}", _FREE_SPACE_HINT if full else _HINTS.get(error.errno or 0, "")
    )
