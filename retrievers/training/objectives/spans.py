"""Parts of a document drawn at random, cut between words: pairs that objectives relate."""

import re
from collections.abc import Callable

import numpy as np

_WORD = re.compile(r"\S+")
_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|(?=\n)|\Z)", re.DOTALL)


def two_spans(text: str, most_words: int, rng: np.random.Generator) -> tuple[str, str]:
    """Two parts of a text that do not overlap, equally long in words, in the order of the text.

    Every such pair is equally likely. A text of fewer than two words is both spans itself.

    Args:
        text: words are what white space separates.
        most_words: of a span.
    """
    words = [word.span() for word in _WORD.finditer(text)]
    size = min(most_words, len(words) // 2)
    if not size:
        return text, text
    slack = len(words) - 2 * size
    first, second = sorted(rng.choice(slack + 2, 2, replace=False))
    return _part(text, words, first, size), _part(text, words, second - 1 + size, size)


def adjoining_spans(
    text: str,
    most_words: int,
    read: Callable[[str], int],
    overlap: bool,
    rng: np.random.Generator,
) -> tuple[str, str]:
    """Two parts of a text, of which the second begins where the first is no longer read.

    They are equally long in words, and as long as those of `two_spans`. A text of fewer than two
    words is both spans itself.

    Args:
        text: words are what white space separates.
        most_words: of a span.
        read: the number of characters that are read of a span, the rest of which is cut off.
        overlap: the second begins earlier: with the last words that are read of the first, from
            one of them to half.
    """
    words = [word.span() for word in _WORD.finditer(text)]
    size = min(most_words, len(words) // 2)
    if not size:
        return text, text
    start = int(rng.integers(len(words) - 2 * size + 1))
    first = _part(text, words, start, size)
    length = len(_WORD.findall(first[: read(first)]))
    shared = int(rng.integers(1, length // 2 + 1)) if overlap and length > 1 else 0
    return first, _part(text, words, start + length - shared, size)


def sentence_and_rest(
    text: str, most_words: int, kept: float, rng: np.random.Generator
) -> tuple[str, str]:
    """A sentence of a text, and the text without it or, with probability ``kept``, with it.

    A sentence ends with the line, or at a full stop, question mark or exclamation mark before white
    space. A text of one sentence gives its first and second half instead.

    Args:
        text: words are what white space separates.
        most_words: of the text; what follows is left out.
    """
    words = [word.span() for word in _WORD.finditer(text)]
    if len(words) > most_words:
        text = text[: words[most_words - 1][1]]
    sentences = [sentence.span() for sentence in _SENTENCE.finditer(text)]
    if len(sentences) < 2:
        return two_spans(text, len(words), rng)
    start, end = sentences[rng.integers(len(sentences))]
    rest = text if rng.random() < kept else f"{text[:start].rstrip()} {text[end:].lstrip()}".strip()
    return text[start:end], rest


def _part(text: str, words: list[tuple[int, int]], first: int, size: int) -> str:
    return text[words[first][0] : words[first + size - 1][1]]
