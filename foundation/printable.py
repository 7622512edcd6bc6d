"""Text that a terminal shows and does not obey."""

import re
from collections.abc import Sequence

# Controls but tab and line end, signs that turn the direction of writing or end a line, and the
# surrogates by which Python stands for the bytes of a path that is not UTF-8.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_PASSWORD = re.compile(r"(?<!abfs)://[^/\s]+(?=@)")  # abfs: the container is there
_LONG = re.compile(r"\S{301,}")
_NOT_ASCII = re.compile("[\x00-\x08\x0b-\x1f\x7f-\U0010ffff]")


def make_printable(text: str, encoding: str = "utf-8") -> str:
    r"""The text with ``\u001b`` in place of what a terminal would obey or cannot show.

    JSON stays JSON of the same content.

    Args:
        encoding: of the terminal; where it is not UTF-8, only ASCII is shown as it is.
    """
    text = hide_passwords(text)
    if text.isascii() and text.isprintable():
        return text
    shows_all = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return (_CONTROLS if shows_all else _NOT_ASCII).sub(lambda match: _escape(match[0]), text)


def hide_passwords(text: str) -> str:
    """The text with ``***`` for the user and password in its URLs."""
    return _PASSWORD.sub("://***", text) if "@" in text and "://" in text else text


def to_one_line(text: str) -> str:
    """Text on one line, for a cell or a heading: white space is one space, controls are shown."""
    return make_printable(" ".join(text.split()))


def format_names(names: Sequence[str], limit: int = 4) -> str:
    """The first names of a list, and how many more there are: ``a, b, c, d and 3 more``."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def format_count(count: int, one: str, many: str) -> str:
    """A number with its noun: ``1 query``, ``1,000 queries``."""
    return f"{count:,} {one if count == 1 else many}"


def shorten_words(text: str) -> str:
    """The text with words of more than 300 signs cut, as a message needs no whole one."""
    return _LONG.sub(lambda match: f"{match[0][:200]}…{match[0][-50:]}", text)


def _escape(text: str) -> str:
    r"""JSON's escapes: ``\uXXXX``, two of them beyond the basic plane."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
