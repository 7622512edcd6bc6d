"""A model with a reranker as a retriever.

The score of a pair of query and document is stored as soon as it is known, and computed once: for
every depth, every model whose documents are reranked, and after a command that was killed.
"""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
from tqdm import tqdm

from bench.evaluation.asking import Response, open_responses
from bench.evaluation.member_retriever import MemberRetriever, add_parameters
from bench.evaluation.result_record import Timings
from bench.evaluation.retriever import Resources, SearchStatistics
from bench.evaluation.runs import Run, round_scores
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.files import hash_records
from retrievers.encoders.protocol import join_documents
from retrievers.encoders.reranker import Reranker, open_reranker
from retrievers.models.checkpoint import Parameters
from retrievers.models.resolve import Model, count_parameters

PAIRS = "reranked"  # folder of the cache
LIBRARIES = ("sentence-transformers", "transformers")

Pairs = Mapping[str, Response]  # by query id


@dataclass(frozen=True, kw_only=True)
class RerankRetriever(MemberRetriever):
    """A retriever whose first documents a reranker puts into another order.

    Attributes:
        reranker: opens the reranker, once.
    """

    reranker: Callable[[], Reranker]

    @classmethod
    def open(cls, model: Model, resources: Resources) -> Self:
        """Return the retriever of a resolved model, still without its member."""
        reranker = functools.cache(functools.partial(open_reranker, model, resources.device))
        return cls(model=model, resources=resources, reranker=reranker)

    def parameters(self) -> Parameters | None:
        """Return the parameters of both models, or None if those of one are unknown."""
        own = count_parameters(self.model) if self.model.document else None
        return add_parameters([super().parameters(), own])

    def members_depth(self, depth: int) -> int:
        """Return the number of documents that the member ranks for a ranking of ``depth``."""
        return max(depth, self.card.depth)

    def search(self, dataset: Dataset, depth: int) -> tuple[Run, SearchStatistics]:
        """Return the rankings of the member, whose first documents are reranked."""
        (run,), (statistics,) = self.search_members(dataset, depth)
        started = time.perf_counter()
        reranked = rerank(run, self.score_pairs(dataset, run), self.card.depth)
        seconds = time.perf_counter() - started
        own = Timings(search_s=seconds, busy_s={"rerank": seconds})
        return reranked, self.sum_statistics([statistics], own)

    def score_pairs(self, dataset: Dataset, run: Run) -> Pairs:
        """Score the first documents of each query of ``run`` that have no stored score.

        Returns:
            By query id: all documents that were ever scored for it, their scores, and the seconds
            that these took. Documents that the collection lacks have no score.

        Raises:
            BenchError: the reranker fails. Scores of other queries are kept.
        """
        queries = dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True))
        with open_responses(self._path(dataset)) as kept:
            wanted = _find_missing(dataset.corpus, run, kept.responses, self.card.depth)
            title, pairs = f"{dataset.name}: {self.name} reranks", sum(map(len, wanted.values()))
            with tqdm(desc=title, total=pairs, unit=" pairs", disable=not pairs) as bar:
                for query, rows in wanted.items():
                    ids = list(rows)
                    documents = dataset.corpus.documents_at(np.array([*rows.values()]))
                    texts = join_documents(self.recipe, *documents)
                    reranker, started = self.reranker(), time.perf_counter()
                    scores = reranker.score(query, queries[query], texts)
                    seconds = time.perf_counter() - started
                    new = Response(query, len(ids), seconds, ids, scores.tolist())
                    kept.add(_join(kept.responses.get(query), new))
                    bar.update(len(ids))
        return kept.responses

    def _path(self, dataset: Dataset) -> Path:
        """Return the file of the scores of this reranker, which all depths and members share."""
        names = self.recipe.options.keys() & {"reranker", *LIBRARIES}
        options = {name: self.recipe.options[name] for name in names}
        reranker = msgspec.structs.replace(self.recipe, options=options).fingerprint
        made_from = (reranker, dataset.queries_sha256, dataset.corpus.sha256)
        return dataset.cache_dir / PAIRS / f"{hash_records([made_from])[:32]}.jsonl"


def _find_missing(corpus: Corpus, run: Run, known: Pairs, depth: int) -> dict[str, dict[str, int]]:
    """Return the rows of the first ``depth`` documents that have no score, by query and id."""
    missing = dict[str, list[str]]()
    for query, ids, _ in run.rankings():
        scored = set(known[query].ids) if query in known else set()
        missing[query] = [each for each in ids[:depth] if each not in scored]
    names = list(dict.fromkeys(each for ids in missing.values() for each in ids))
    row_of = dict(zip(names, corpus.rows_of(names).tolist(), strict=True))
    rows = {
        query: {each: row_of[each] for each in ids if row_of[each] >= 0}
        for query, ids in missing.items()
    }
    return {query: found for query, found in rows.items() if found}


def _join(known: Response | None, new: Response) -> Response:
    """Return the scores of a query with ``new`` ones, as one line of the file."""
    if known is None:
        return new
    return Response(
        query=new.query,
        k=known.k + new.k,
        seconds=known.seconds + new.seconds,
        ids=known.ids + new.ids,
        scores=[*(known.scores or ()), *(new.scores or ())],
    )


def rerank(run: Run, pairs: Pairs, depth: int) -> Run:
    """Put the first documents of each query into the order of their scores.

    The others follow in their order, with scores that fall by 1 or the next number of float32. No
    document enters or leaves a ranking.

    Args:
        run: rankings.
        pairs: scores of documents by query id. A document without one follows those with one.
        depth: number of documents of each query that are reranked.

    Raises:
        BenchError: a score is not finite as float32.
    """
    count = len(run.query_ids)
    lengths = np.diff(run.offsets)
    queries = np.repeat(np.arange(count), lengths)
    ranks = np.arange(len(run)) - np.repeat(run.offsets[:-1], lengths)
    scores = np.full(len(run), np.nan)
    for number, (query, ids, _) in enumerate(run.rankings()):
        if found := pairs.get(query):
            known = dict(zip(found.ids, found.scores or (), strict=True))
            start = run.offsets[number]
            scores[start : start + min(depth, len(ids))] = [
                known.get(each, np.nan) for each in ids[:depth]
            ]
    others = np.isnan(scores)
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, queries[~others], scores[~others])
    lowest[np.isinf(lowest)] = 0
    step = np.maximum(1, 2 * np.spacing(np.abs(lowest).astype(np.float32)))
    scores[others] = lowest[queries[others]] - step[queries[others]] * (ranks[others] + 1)
    ids = pa.array(run.query_ids, pa.large_string())
    return Run.from_columns(
        pa.DictionaryArray.from_arrays(pa.array(queries.astype(np.int32)), ids),
        pa.DictionaryArray.from_arrays(pa.array(run.documents), run.ids),
        round_scores(scores),
    )
