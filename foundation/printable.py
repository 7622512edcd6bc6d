"""Text that is safe to print on a terminal."""

import re
from collections.abc import Sequence

# Control characters except tab and newline, characters that change the writing direction or end a
# line, and the surrogates with which Python represents the bytes of a path that is not UTF-8.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_PASSWORD = re.compile(r"(?<!abfs)://[^/\s]+(?=@)")  # in abfs URLs it is the container
_LONG = re.compile(r"\S{301,}")
_NOT_ASCII = re.compile("[\x00-\x08\x0b-\x1f\x7f-\U0010ffff]")


def make_printable(text: str, encoding: str = "utf-8") -> str:
    r"""Return ``text`` with an escape such as ``\u001b`` for each character a terminal would obey.

    JSON remains valid JSON with the same content. Passwords in URLs are hidden.

    Args:
        text: any text.
        encoding: encoding of the terminal. Unless it is UTF-8, all non-ASCII characters are
            escaped.
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


def shorten_words(text: str) -> str:
    """Return ``text`` with words of more than 300 characters abbreviated."""
    return _LONG.sub(lambda match: f"{match[0][:200]}…{match[0][-50:]}", text)


def _escape(text: str) -> str:
    r"""Return JSON escapes ``\uXXXX`` of a text, two for a character beyond the basic plane."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
