"""Parts of a document drawn at random, cut between words: the pairs of contrastive objectives."""

import re

import numpy as np

_WORD = re.compile(r"\S+")


def two_spans(text: str, most_words: int, rng: np.random.Generator) -> tuple[str, str]:
    """Two parts of a text that do not overlap, equally long in words, in the order of the text.

    Every such pair is equally likely. A text of fewer than two words is both spans itself.

    Args:
        text: words are what white space separates.
        most_words: of a span.
    """
    words = [found.span() for found in _WORD.finditer(text)]
    size = min(most_words, len(words) // 2)
    if not size:
        return text, text
    slack = len(words) - 2 * size
    first, second = sorted(rng.choice(slack + 2, 2, replace=False))
    return _part(text, words, first, size), _part(text, words, second - 1 + size, size)


def _part(text: str, words: list[tuple[int, int]], first: int, size: int) -> str:
    return text[words[first][0] : words[first + size - 1][1]]
