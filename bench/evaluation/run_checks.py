"""What a run of another program shows that makes its scores mean something else.

`score`, `compare` and `check` refuse and tell the same, since all score run files by
`bench.evaluation.pipeline.evaluate_run`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, format_count


def check_run(run: Run, name: str, dataset: Dataset, measures: Sequence[str]) -> list[str]:
    """Return what makes the scores of a run mean something else, one sentence each.

    Args:
        run: as its file states it.
        name: its name in messages.
        dataset: collection whose judgements score it.
        measures: names of the measures, whose cutoffs the rankings should reach.

    Raises:
        BenchError: the run has no document, no query of the collection, or, if documents can be
            looked up in seconds, none of its documents.
    """
    if not len(run):
        raise BenchError(f"the run {name} is empty")
    known = set(dataset.queries.ids)
    unknown = [query for query in run.query_ids if query not in known]
    if len(unknown) == len(run.query_ids):
        raise BenchError(
            f"no query of the run {name} is in {dataset.name}: the run has {unknown[0]!r}, the "
            f"collection {dataset.queries.ids[0]!r}",
            "check --dataset and --split",
        )
    notes = []
    if unknown:
        count = format_count(len(unknown), "query", "queries")
        notes.append(
            f"{count} of {len(run.query_ids):,}, such as {unknown[0]!r}, are not in this split of "
            f"{dataset.name}; they do not count"
        )
    corpus = dataset.find_quick_corpus()
    if corpus is not None:
        notes += _check_documents(run, name, dataset.name, corpus)
    longest, size = int(np.diff(run.offsets).max()), dataset.facts.counts.documents
    size = size if corpus is None else len(corpus)
    deeper = [each for each in measures if parse_measure(each).documents > longest]
    if deeper and (size is None or longest + bool(dataset.facts.exclude_self) < size):
        fewer = format_count(longest, "document", "documents")
        notes.append(f"no query has more than {fewer}, fewer than {', '.join(deeper)} can count")
    return notes


def _check_documents(run: Run, name: str, collection: str, corpus: Corpus) -> Iterator[str]:
    """Yield how many documents are not in the corpus, or raise if none is."""
    ids = run.ids.to_pylist()
    unknown = np.flatnonzero(corpus.rows_of(ids) < 0)
    if len(unknown) == len(ids):
        raise BenchError(
            f"no document of the run {name} is in {collection}: the run has {ids[0]!r}, the "
            f"collection {corpus.ids[0].as_py()!r}",
            "Check --dataset, and that the run has ids of documents, not rows.",
        )
    if len(unknown):
        yield (
            f"{len(unknown):,} of {len(ids):,} documents of the run are not in the corpus, such as "
            f"{ids[unknown[0]]!r}"
        )
