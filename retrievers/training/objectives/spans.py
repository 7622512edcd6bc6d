"""Parts of a document drawn at random: pairs that objectives relate."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from retrievers.training.objectives.masking import NOT_A_WORD, TokenBatch, pad

Context = Literal["nearby", "overlap", "random"]


def draw_spans(
    tokenizer: Any,
    texts: Sequence[str],
    max_tokens: int,
    contexts: Sequence[Context],
    rng: np.random.Generator,
) -> TokenBatch:
    """Tokens of two spans of each text, drawn from all of its tokens.

    The spans of a text are equally long: as long as is read or, of a short text, half of its
    tokens. They are cut between tokens, so that no part of a text is out of reach. A text of fewer
    than two tokens is both spans itself. Each text is tokenised once, as a whole.

    Args:
        tokenizer: fast tokenizer of Hugging Face.
        max_tokens: of a span, special tokens included.
        contexts: kinds of pairs, see `two_starts`; each text gets one of them at random.

    Returns:
        Rows 2i and 2i + 1 are the spans of text i, in the order of the text.
    """
    room = max_tokens - tokenizer.num_special_tokens_to_add()
    encoded = tokenizer(list(texts), truncation=False, verbose=False)
    ids, words = [], []
    for encoding in encoded.encodings:
        text_ids = np.array(encoding.ids)
        text_words = np.array([NOT_A_WORD if word is None else word for word in encoding.word_ids])
        special = np.array(encoding.special_tokens_mask, dtype=bool)
        (own,) = np.nonzero(~special)
        size = min(room, len(own) // 2)
        context = contexts[int(rng.integers(len(contexts)))]
        starts = two_starts(len(own), size, context, rng) if size else (0, 0)
        for start in starts:
            kept = special.copy()  # a span is between the special tokens of its text
            kept[own[start : start + max(size, 1)]] = True
            ids.append(text_ids[kept])
            words.append(text_words[kept])
    return pad(ids, words, tokenizer.pad_token_id)


def two_starts(
    tokens: int, size: int, context: Context, rng: np.random.Generator
) -> tuple[int, int]:
    """First token of either span of a text; every place that a kind allows is equally likely.

    Args:
        tokens: of the text, at least ``2 * size``.
        size: tokens of a span, at least 1.
        context: ``nearby``, the second span follows the first; ``overlap``, it begins in the second
            half of the first, by a number of shared tokens that is drawn before the place, and
            follows it where they are of one token; ``random``, anywhere behind the first.
    """
    if context == "random":
        first, second = sorted(rng.choice(tokens - 2 * size + 2, 2, replace=False).tolist())
        return first, second - 1 + size
    shared = int(rng.integers(1, size // 2 + 1)) if context == "overlap" and size > 1 else 0
    first = int(rng.integers(tokens - 2 * size + shared + 1))
    return first, first + size - shared
