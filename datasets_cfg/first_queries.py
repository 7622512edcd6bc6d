"""The first queries of a collection with a small corpus, as a collection of its own."""

from collections.abc import Iterator

import numpy as np

from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError

OTHERS = 10  # documents without a judgement, for each query
KEPT_FACTS = ("main_measure", "measures", "depth", "exclude_self", "title_track", "version")


def first_queries(dataset: Dataset, count: int) -> Dataset:
    """The first queries, what is judged for them, and `OTHERS` times as many further documents.

    Scores on it say nothing about the collection: nearly all documents that could be mistaken for
    relevant ones are missing. Its name is that of the collection with ``/firstN``, so that prompts
    and what models were trained on apply, and results never mix with those of the whole.

    Args:
        count: of queries; a collection that has fewer gives all of its own.

    Raises:
        BenchError: accepted answers decide what is relevant, so no document is known to be.
    """
    if dataset.answers is not None:
        raise BenchError(
            f"{dataset.name} has no judgements of documents, by which --limit chooses them",
            "leave --limit out",
        )
    ids = list(dataset.qrels.queries())[:count]
    texts = dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True))
    qrels: dict[str, dict[str, int]] = {id_: {} for id_ in ids}
    for query, document, grade in dataset.qrels:
        if query in qrels:
            qrels[query][document] = grade
    judged = sorted({document for grades in qrels.values() for document in grades})
    facts = {name: getattr(dataset.facts, name) for name in KEPT_FACTS}
    return Dataset.from_dicts(
        dict(_documents(dataset, judged, OTHERS * count)),
        {id_: texts[id_] for id_ in ids},
        qrels,
        name=f"{dataset.name}/first{count}",
        cache_dir=dataset.cache_dir,
        **{name: fact for name, fact in facts.items() if fact is not None},
    )


def _documents(
    dataset: Dataset, judged: list[str], others: int
) -> Iterator[tuple[str, dict[str, str]]]:
    """Judged documents and the first others, in the order of the corpus."""
    corpus = dataset.corpus
    rows = corpus.rows_of(judged)
    rows = rows[rows >= 0]
    head = np.arange(min(len(corpus), others + len(rows)))
    kept = np.sort(np.concatenate([rows, np.setdiff1d(head, rows)[:others]]))
    columns = (corpus.ids, corpus.titles, corpus.texts)
    for id_, title, text in zip(
        *(column.take(kept).to_pylist() for column in columns), strict=True
    ):
        yield id_, {"title": title, "text": text}
