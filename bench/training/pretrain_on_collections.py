"""Pre-training on collections: their corpora as texts, their names on the card."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.training.leaks import seen
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.encoders.document_text import join
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.texts import LazyTexts

if TYPE_CHECKING:
    from retrievers.training.engine.arguments import TrainingContext
    from retrievers.training.pretrain.pretrain import Trained


class CorpusTexts(LazyTexts):
    """The documents of corpora, one after the other, each as title, space and text.

    Documents without a word are left out. A document is read from disk when it is asked for.
    """

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self.corpora = corpora
        self.rows = [_with_words(corpus) for corpus in corpora]
        self.ends = np.cumsum([len(rows) for rows in self.rows])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def text_at(self, place: int) -> str:
        """Title and text of a document."""
        number = int(np.searchsorted(self.ends, place, side="right"))
        rows = self.rows[number]
        row = int(rows[place - (self.ends[number] - len(rows))])
        corpus = self.corpora[number]
        return join("space", "", corpus.titles[row].as_py(), corpus.texts[row].as_py())[0]


def _with_words(corpus: Corpus) -> Int64Array:
    """Rows of the documents that have a title or a text."""
    empty = pc.and_(_blank(corpus.titles), _blank(corpus.texts))
    rows: Int64Array = np.flatnonzero(~np.asarray(empty.combine_chunks()))
    return rows


def _blank(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0)


def pretrain_on(
    preset: Pretraining, datasets: Sequence[Dataset], context: "TrainingContext"
) -> "Trained":
    """Pre-train on the corpora of collections; queries and judgements are not read.

    Args:
        preset: see `retrievers.training.pretrain.preset`.
        context: whose folder gets the checkpoint.

    Raises:
        BenchError: no collection has a document with a word.
        BenchError: see `Dataset.corpus` and `retrievers.training.pretrain.pretrain`.
    """
    from retrievers.training.pretrain.pretrain import pretrain

    texts = CorpusTexts([dataset.corpus for dataset in datasets])
    if not len(texts):
        raise BenchError("there is nothing to train on", "name collections with --on")
    names = [dataset.name for dataset in datasets]
    return pretrain(preset, texts, context, trained_on=seen(names))
