"""Texts of a pre-training: their division into blocks, their order, and the number of steps.

The authors' scripts of RetroMAE and Condenser fill a block with sentences of one document, and lose
what exceeds the length. Here a block ends before the word that would exceed the length, and no
token of a document is lost. The order depends only on the seed.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from foundation.arrays import Int64Array
from foundation.files import hash_records
from retrievers.training.engine.context import Progress, world_size
from retrievers.training.objectives.objective import Collator, Example, count_tokens
from retrievers.training.preset import Pretraining

READ_DOCUMENTS = 1_000  # documents tokenized at a time
COUNTED_TEXTS = 4_096  # number of first texts from which the average length is estimated


class LazyTexts(Sequence[str]):
    """Sequence of texts that are read when they are accessed.

    ``sha256`` is a hash (hex) of what decides them, or "" if only reading them would tell.
    """

    sha256: str = ""

    @abstractmethod
    def text_at(self, index: int) -> str:
        """Return the text at ``index``, from 0."""

    def __getitem__(self, index: Any) -> Any:
        chosen = range(len(self))[index]
        if isinstance(index, slice):
            return [self.text_at(number) for number in chosen]
        return self.text_at(chosen)


class Blocks(LazyTexts):
    """Blocks of all documents, in order. The blocks of a document, joined, are the document.

    ``document`` of each block and its first and last character, ``start`` and ``end``, are int64
    ``(blocks,)``.
    """

    def __init__(
        self,
        documents: Sequence[str],
        tokenizer: Any,
        max_tokens: int,
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        """Divide documents into blocks of up to ``max_tokens`` tokens, including special tokens."""
        self.documents = documents
        limit = max_tokens - tokenizer.num_special_tokens_to_add()
        parts = list(_cut_documents(documents, tokenizer, limit, report))
        self.document, self.start, self.end = np.concatenate(parts).T

    def __len__(self) -> int:
        return len(self.document)

    def text_at(self, index: int) -> str:
        """Return the text of the block at ``index``."""
        text = self.documents[int(self.document[index])]
        return text[self.start[index] : self.end[index]]


def training_texts(
    preset: Pretraining,
    documents: Sequence[str],
    tokenizer: Any,
    report: Callable[[Progress], None] | None = None,
) -> Sequence[str]:
    """Return the texts that a training reads: blocks of documents, or complete documents."""
    if preset.long_texts == "truncate" or preset.objective.reads_documents:
        return documents
    return Blocks(documents, tokenizer, preset.max_tokens, report)


def _cut_documents(
    documents: Sequence[str], tokenizer: Any, limit: int, report: Callable[[Progress], None] | None
) -> Iterator[Int64Array]:
    """Yield document, start and end of the blocks of some documents, int64 ``(blocks, 3)``."""
    for first in range(0, len(documents), READ_DOCUMENTS):
        texts = documents[first : first + READ_DOCUMENTS]
        encoded = tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)
        blocks = []
        for row, (text, encoding) in enumerate(zip(texts, encoded.encodings, strict=True), first):
            cuts = [0, *_cut_positions(encoding, limit), len(text)]
            blocks += [(row, *bounds) for bounds in pairwise(cuts)]
        yield np.array(blocks, np.int64)
        if report and len(documents) > READ_DOCUMENTS:
            done = first + len(texts)
            report(Progress("blocks of documents", done, len(documents), "documents"))


def _cut_positions(encoding: Any, limit: int) -> Iterator[int]:
    """Yield the characters at which a document is cut: before the word that does not fit the block.

    A word with more tokens than a block holds is cut at the end of the block.
    """
    words, offsets = encoding.word_ids, encoding.offsets
    end = limit
    while end < len(words):
        start_of_word = end
        while start_of_word > end - limit and words[start_of_word] == words[start_of_word - 1]:
            start_of_word -= 1
        end = start_of_word if start_of_word > end - limit else end
        # White space belongs to the next word: byte-level tokenizers treat it as part of it.
        yield offsets[end - 1][1]
        end += limit


class Stream:
    """Texts of a training, in a different order in each pass over them.

    An index always gives the same text and the same random draw.
    """

    def __init__(self, texts: Sequence[str], length: int, seed: int) -> None:
        self.texts, self.length, self.seed = texts, length, seed
        # Two passes suffice, since the stream is read in order.
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.length:
            raise IndexError(f"index {index} of {self.length}")
        passed, position = divmod(index, len(self.texts))
        row = int(self._order(passed)[position])
        return {"text": self.texts[row], "draw": (self.seed << 40) + index}

    def _shuffled(self, passed: int) -> Int64Array:
        return np.random.default_rng([self.seed, passed]).permutation(len(self.texts))


def hash_texts(texts: Sequence[str]) -> str:
    """Return the sha256 (hex) of the content of ``texts``, which may know it."""
    known = texts.sha256 if isinstance(texts, LazyTexts) else ""
    return known or hash_records([text] for text in texts)


def count_steps(preset: Pretraining, texts: Sequence[str], collate: Collator) -> int:
    """Return the number of steps of a training on ``texts``.

    A number of tokens is counted on the first texts as training would read them.
    """
    if preset.steps is not None:
        return preset.steps
    if preset.epochs is not None:
        return max(1, math.ceil(preset.epochs * len(texts) / texts_per_step(preset)))
    counted = min(COUNTED_TEXTS, len(texts))
    stream = Stream(texts, counted, preset.seed)
    tokens = 0
    for first in range(0, counted, preset.batch_size):
        indices = range(first, min(first + preset.batch_size, counted))
        tokens += int(count_tokens(collate([stream[index] for index in indices])))
    return max(1, round((preset.tokens or 0) * counted / tokens / texts_per_step(preset)))


def texts_per_step(preset: Pretraining) -> int:
    """Return the number of texts that all processes read together in a step of ``preset``."""
    return preset.batch_size * preset.accumulate * world_size()
