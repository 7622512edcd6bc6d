"""What a pre-training reads, in which order, and for how many steps.

Documents come in blocks that a model reads whole, so that training sees their tails too, as in the
authors' scripts of RetroMAE (examples/pretrain/preprocess.py) and of Condenser
(helper/create_train.py), which fill a block with sentences of one document until it is full. There
a block that exceeds the length loses the excess; here a block ends before the word that would
exceed it, and no token of a document is lost.

The order is a function of the seed and nothing else.
"""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from foundation.arrays import Int64Array
from retrievers.training.engine.arguments import Progress, world_size
from retrievers.training.objectives.objective import Collator, Example
from retrievers.training.pretrain.preset import Pretraining

if TYPE_CHECKING:
    from torch import Tensor

READ_DOCUMENTS = 1_000  # that are tokenised at a time
SAMPLED_TEXTS = 1_000
COUNTED_TEXTS = 4_096  # texts, the first that are read, whose tokens stand for those of all


class LazyTexts(Sequence[str]):
    """Texts that are read when they are asked for."""

    @abstractmethod
    def text_at(self, index: int) -> str:
        """The text of a place, from 0."""

    def __getitem__(self, index: Any) -> Any:
        chosen = range(len(self))[index]
        if isinstance(index, slice):
            return [self.text_at(number) for number in chosen]
        return self.text_at(chosen)


class Blocks(LazyTexts):
    """The blocks of all documents, in their order; those of a document, joined, are the document.

    Args:
        documents: read twice, here and when a block is asked for.
        tokenizer: fast tokenizer of Hugging Face.
        max_tokens: of a block, special tokens included.
        report: told how many documents were cut so far.

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
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        self.documents = documents
        room = max_tokens - tokenizer.num_special_tokens_to_add()
        parts = list(_cut_documents(documents, tokenizer, room, report))
        self.document, self.start, self.end = np.concatenate(parts).T

    def __len__(self) -> int:
        return len(self.document)

    def text_at(self, index: int) -> str:
        """The characters of a block."""
        text = self.documents[int(self.document[index])]
        return text[self.start[index] : self.end[index]]


def training_texts(
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
    return Blocks(documents, tokenizer, preset.max_tokens, report)


def _cut_documents(
    documents: Sequence[str],
    tokenizer: Any,
    room: int,
    report: Callable[[Progress], None] | None,
) -> Iterator[Int64Array]:
    """Document, start and end of each block, int64 ``(blocks, 3)``, some documents at a time."""
    for first in range(0, len(documents), READ_DOCUMENTS):
        texts = documents[first : first + READ_DOCUMENTS]
        encoded = tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)
        blocks = []
        for row, (text, encoding) in enumerate(zip(texts, encoded.encodings, strict=True), first):
            cuts = [0, *_cut_positions(encoding, room), len(text)]
            blocks += [(row, *bounds) for bounds in pairwise(cuts)]
        yield np.array(blocks, np.int64)
        if report and len(documents) > READ_DOCUMENTS:
            done = first + len(texts)
            report(Progress("blocks of documents", done, len(documents), "documents"))


def _cut_positions(encoding: Any, room: int) -> Iterator[int]:
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


class Stream:
    """Places 0, 1, 2, … of a training; each pass over the texts has an order of its own.

    A place always holds the same text with the same draw, so that a training that was killed
    goes on as if it had not been, and trainings with one seed read the same texts in one order.

    Args:
        texts: at least one; read when they are asked for.
        places: length of the stream.
        seed: of the orders and the draws.
    """

    def __init__(self, texts: Sequence[str], length: int, seed: int) -> None:
        self.texts, self.length, self.seed = texts, length, seed
        # Of one pass at a time: the stream is read forwards.
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


def hash_sample(texts: Sequence[str]) -> str:
    """sha256 (hex) of about 1,000 texts, evenly spaced."""
    digest = hashlib.sha256()
    for index in range(0, len(texts), max(1, len(texts) // SAMPLED_TEXTS)):
        content = texts[index].encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def count_steps(preset: Pretraining, texts: Sequence[str], collate: Collator) -> int:
    """Steps of a training on these texts.

    Tokens are counted on the first texts that training would read, as it would read them, so that
    an objective that reads two spans of a document takes fewer steps for as many tokens.
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
    """Texts that all processes read together in a step."""
    return preset.batch_size * preset.accumulate * world_size()


def count_tokens(batch: Mapping[str, "Tensor"]) -> "Tensor":
    """Tokens of the texts in a batch that are no padding, by its masks; a scalar."""
    masks = [mask.sum() for name, mask in batch.items() if name.endswith("_mask")]
    return sum(masks[1:], start=masks[0])
