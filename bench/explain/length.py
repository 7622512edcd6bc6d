"""The length that a server reads, found by bisection on synthetic texts.

Three texts differ in their first or their last word only. If their vectors differ, the server reads
all of them. It does not if it cuts texts at either end, or if it encodes them in pieces and returns
the vector of the last one. Words are single tokens, so lengths are exact, and a request has one
text, so a server that mixes up its answers misleads nobody.
"""

import sys
from dataclasses import dataclass
from itertools import islice
from math import isqrt
from typing import Any

import numpy as np

from bench.explain.setup import LONGEST, MEND_THERE, Observation, cut_settings
from retrievers.encoders.external import EndpointEncoder, RefusedError
from retrievers.encoders.tokens import load_tokenizer
from retrievers.models.resolve import Model

MOST_TOKENS = 8_192  # of a text
WORDS, LOOKED_AT = 16, 5_000  # words of the texts, and tokens among which they are looked for
NOISE = 10.0  # times the squared distance of the vectors of equal texts, and
ROUNDING = 1e-12  # the relative squared distance, above which vectors differ


@dataclass(frozen=True)
class ServedLength:
    """Length that a server reads.

    Attributes:
        tokens: of the longest text that is read as a whole, special tokens included.
        longer: what happens to longer texts, such as ``lose their end``; "" if all are read.
        stated: length of the documents of the checkpoint.
    """

    tokens: int
    longer: str
    stated: int

    @property
    def note(self) -> Observation:
        """The length, and the setting that does the same here."""
        size = f"{self.tokens:,} tokens" + ("" if self.agrees else f", not {self.stated:,}")
        if not self.longer:
            return Observation(f"the server reads texts of {size}", "")
        name = f"the server reads at most {size}: longer texts {self.longer}"
        same = cut_settings(self.tokens) if self.longer == "lose their end" else MEND_THERE
        return Observation(name, "" if self.agrees else same)

    @property
    def agrees(self) -> bool:
        """True if the server reads as many tokens as the checkpoint does."""
        return self.tokens == self.stated or (not self.longer and self.stated > MOST_TOKENS)


def find_length(server: EndpointEncoder, model: Model) -> ServedLength | None:
    """Find the maximum length of a server by bisection, starting at its checkpoint's.

    Returns:
        None if the checkpoint's words are not single tokens, or the server's vectors do not depend
        on a text alone.
    """
    if model.recipe.kind != "transformer":
        return None
    tokenizer = load_tokenizer(model.checkpoint)
    words = _find_words(tokenizer)
    if len(words) < WORDS // 2:
        return None
    recipe, around = model.recipe, tokenizer.num_special_tokens_to_add()
    stated = recipe.max_document_tokens or LONGEST
    stated = min(stated, model.checkpoint.position_limit or stated)
    print("finding the length that the server reads", file=sys.stderr)
    low, high, longer = around, MOST_TOKENS + 1, ""  # read, and not read
    while high - low > 1:
        middle = max(low + 1, isqrt(low * high))
        tokens = next((each for each in (stated, stated + 1) if low < each < high), middle)
        problem = _find_unread(server.server, words, tokens - around)
        if problem:
            high, longer = tokens, problem
        else:
            low = tokens
    return ServedLength(low, longer, stated) if low > around else None


def _find_words(tokenizer: Any) -> list[str]:
    """Return words that are one token each, the most frequent ones first."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    bare = (token.lstrip("Ġ▁") for token, _ in tokens)
    known = (word for word in bare if len(word) > 2 and word.isascii() and word.islower())
    words = list(islice(dict.fromkeys(word for word in known if word.isalpha()), LOOKED_AT))
    ids = tokenizer([f"{word} {word}" for word in words], add_special_tokens=False)["input_ids"]
    pairs = zip(words, ids, strict=True)
    unknown = tokenizer.unk_token_id
    return [word for word, row in pairs if len(row) == 2 and unknown not in row][:WORDS]


def _find_unread(server: EndpointEncoder, words: list[str], count: int) -> str:
    """Return what happens to a text of ``count`` words, or "" if a server reads all of it."""
    text = np.random.default_rng(count).choice(words, count).tolist()
    first, last = (words[words.index(each) - 1] for each in (text[0], text[-1]))
    texts = [text, text, [first, *text[1:]], [*text[:-1], last]]
    try:
        alone = [server.encode_queries([" ".join(each)]) for each in texts]
    except RefusedError:
        return "are refused"
    vectors = np.concatenate(alone).astype(np.float64)
    noise, at_start, at_end = ((vectors[1:] - vectors[0]) ** 2).sum(axis=1)
    least = max(NOISE * noise, ROUNDING * (vectors[0] ** 2).sum())
    if at_end <= least:
        return "lose their end"
    return "lose their beginning" if at_start <= least else ""
