"""Documents in blocks that a model reads whole, so that training sees their tails too.

As in the authors' scripts of RetroMAE (examples/pretrain/preprocess.py) and of Condenser
(helper/create_train.py), which fill a block with sentences of one document until it is full. There
a block that exceeds the length loses the excess; here a block ends before the word that would
exceed it, and no token of a document is lost.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from foundation.arrays import Int64Array
from retrievers.training.engine.context import Progress
from retrievers.training.pretrain.preset import Pretraining

READ_DOCUMENTS = 1_000  # that are tokenised at a time


class LazyTexts(Sequence[str]):
    """Texts that are read when they are asked for."""

    @abstractmethod
    def text_at(self, place: int) -> str:
        """The text of a place, from 0."""

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(f"text {place} of {len(self)}")
        return self.text_at(place % len(self))


class Blocks(LazyTexts):
    """The blocks of all documents, in their order; those of a document, joined, are the document.

    Args:
        documents: read twice, here and when a block is asked for.
        tokenizer: fast tokenizer of Hugging Face.
        max_tokens: of a block, special tokens included.
        advance: called with the number of documents that were cut so far.

    Attributes:
        document: of each block, int64 ``(blocks,)``, rising.
        start: first character of each block in its document, int64 ``(blocks,)``.
        end: the character after its last, int64 ``(blocks,)``.
    """

    def __init__(
        self,
        documents: Sequence[str],
        tokenizer: Any,
        max_tokens: int,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        self.documents = documents
        room = max_tokens - tokenizer.num_special_tokens_to_add()
        parts = list(_cut_all(documents, tokenizer, room, advance))
        self.document, self.start, self.end = np.concatenate(parts).T

    def __len__(self) -> int:
        return len(self.document)

    def text_at(self, place: int) -> str:
        """The characters of a block."""
        text = self.documents[int(self.document[place])]
        return text[self.start[place] : self.end[place]]


def texts_of(
    preset: Pretraining,
    documents: Sequence[str],
    tokenizer: Any,
    report: Callable[[Progress], None] | None = None,
) -> Sequence[str]:
    """Texts that a training reads: the blocks of documents, or documents as they are.

    Documents are read as they are where the preset truncates them, and by an objective that draws
    its spans from whole documents.
    """
    if preset.long_texts == "truncate" or preset.objective.reads_documents:
        return documents

    def advance(done: int) -> None:
        if report and len(documents) > READ_DOCUMENTS:
            report(Progress("blocks of documents", done, len(documents), "documents"))

    return Blocks(documents, tokenizer, preset.max_tokens, advance)


def _cut_all(
    documents: Sequence[str], tokenizer: Any, room: int, advance: Callable[[int], None] | None
) -> Iterator[Int64Array]:
    """Document, start and end of each block, int64 ``(blocks, 3)``, some documents at a time."""
    for first in range(0, len(documents), READ_DOCUMENTS):
        texts = [
            documents[row] for row in range(first, min(first + READ_DOCUMENTS, len(documents)))
        ]
        encoded = tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)
        blocks = []
        for row, (text, encoding) in enumerate(zip(texts, encoded.encodings, strict=True), first):
            cuts = [0, *_cuts(encoding, room), len(text)]
            blocks += [(row, *bounds) for bounds in pairwise(cuts)]
        yield np.array(blocks, np.int64)
        if advance:
            advance(first + len(texts))


def _cuts(encoding: Any, room: int) -> Iterator[int]:
    """Characters where a document is cut: before the word that a block has no room for.

    A word of more tokens than a block holds is cut where the block ends.
    """
    words, offsets = encoding.word_ids, encoding.offsets
    end = room
    while end < len(words):
        start_of_word = end
        while start_of_word > end - room and words[start_of_word] == words[start_of_word - 1]:
            start_of_word -= 1
        end = start_of_word if start_of_word > end - room else end
        # White space belongs to what follows: byte-level tokenizers read it as part of the word.
        yield offsets[end - 1][1]
        end += room
