"""The protocol of a collection applied to a run, and means over suites."""

import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import regex

from bench.evaluation.result_record import Result
from bench.evaluation.runs import Run, encode_strings, find_strings
from bench.evaluation.scoring import Scores, parse_measure, score, tie_bounds
from datasets_cfg.catalogue import collections_of, is_suite, suite_for
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.index.hits import Hits, exclude_documents

JUDGED = "Judged@10"
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_DOCUMENTS_AT_ONCE = 4096
EVERY = slice(None)
JUDGED_BY_ANSWERS = ("Success", "RR")  # need no judgements of other documents


def resolve_measures(
    dataset: Dataset, wanted: Sequence[str] | None, depth: int | None, rescore: int | None = None
) -> tuple[str, ...]:
    """Return canonical measure names, the collection's main measure first.

    If it cannot be computed at this depth or without judgements, the first measure in ``wanted``
    becomes the main measure.

    Args:
        dataset: collection.
        wanted: further measures; None for the collection's.
        depth: documents per query; None for the collection's.
        rescore: documents that are left of each ranking, beyond which the collection's further
            measures are left out; None for all.
    """
    further = dataset.metadata.measures if wanted is None else wanted
    measures = [parse_measure(name) for name in (dataset.metadata.main_measure, *further)]
    depth, main = depth or dataset.metadata.depth, measures[0]
    every = {measure.kind for measure in measures}
    kinds = every if dataset.answers is None else every.intersection(JUDGED_BY_ANSWERS)
    if wanted and (main.documents > depth or main.kind not in kinds):
        measures = measures[1:]
    for measure in measures:
        if measure.kind not in kinds:
            raise BenchError(
                f"{measure.name} needs judgements, and {dataset.name} is judged by answer strings",
                f"Use {' or '.join(f'{kind}@k' for kind in JUDGED_BY_ANSWERS)}.",
            )
    deepest = max(measures, key=lambda one: one.documents)
    if deepest.documents > depth:  # R@100 of five documents would be R@5
        raise BenchError(
            f"{deepest.name} on {dataset.name} needs {deepest.documents:,} documents per query, "
            f"and the depth is {depth:,}",
            f"Use --depth {deepest.documents}, or choose measures with --measure.",
        )
    deep = [one for one in measures if one.documents > (rescore or depth)]
    if deep and (wanted or deep[0] is measures[0]):
        raise BenchError(
            f"{deep[0].name} on {dataset.name} needs {deep[0].documents:,} documents per query, "
            f"and --rescore leaves {rescore:,}",
            f"Use --rescore {deep[0].documents} or more.",
        )
    measures = [one for one in measures if one not in deep]
    return tuple(dict.fromkeys(measure.name for measure in measures))


def lowest_relevant_grade(dataset: Dataset) -> int:
    """Return the lowest relevant grade of ``dataset``, which its measures state: 2 on TREC-DL."""
    measures = (dataset.metadata.main_measure, *dataset.metadata.measures)
    return max(parse_measure(name).rel for name in measures)


def check_relevant(dataset: Dataset) -> None:
    """Raise a `BenchError` if no relevant document of ``dataset`` is in its corpus."""
    relevant = dict.fromkeys(document for _, document, grade in dataset.qrels if grade > 0)
    if not relevant or (dataset.corpus.rows_of(tuple(relevant)) >= 0).any():
        return
    raise BenchError(
        f"{dataset.name}: the corpus has none of the {len(relevant):,} relevant documents, such as "
        f"{next(iter(relevant))!r}; its first document is {dataset.corpus.ids[0].as_py()!r}",
        "Check that corpus and qrels are of the same release, and that no id has white space.",
    )


def apply_protocol(run: Run, dataset: Dataset, depth: int) -> Run:
    """Return ``run`` without the documents that ``dataset`` excludes for each query, cut at
    ``depth``.
    """
    lengths = np.diff(run.offsets)
    excluded = [
        (number, id_)
        for number, query in enumerate(run.query_ids)
        for id_ in dataset.excluded_ids(query)
    ]
    if not excluded and (lengths <= depth).all():
        return run
    queries = np.repeat(np.arange(len(run.query_ids)), lengths)
    kept = np.ones(len(run), dtype=bool)
    if excluded:
        numbers, ids = zip(*excluded, strict=True)
        codes, distinct = encode_strings(pa.array(ids, pa.large_string()))
        found = find_strings(run.ids, distinct)[run.documents]
        pairs = np.array(numbers) * len(distinct) + codes
        kept = (found < 0) | ~np.isin(queries * len(distinct) + found, pairs)
    before = np.concatenate([[0], np.cumsum(kept)])
    ranks = before[:-1] - before[run.offsets[queries]]
    kept &= ranks < depth
    offsets = np.concatenate([[0], np.cumsum(kept)])[run.offsets]
    return Run(run.query_ids, offsets, run.ids, run.documents[kept], run.scores[kept])


def search_depth(dataset: Dataset, k: int) -> int:
    """Return the depth to search so that ``k`` documents remain without excluded ones."""
    most = max(map(len, dataset.excluded.values()), default=0)
    return k + bool(dataset.metadata.exclude_self) + most


def drop_excluded(
    dataset: Dataset, hits: Hits, k: int, queries: Int64Array | slice = EVERY
) -> Hits:
    """Drop the documents that the protocol of ``dataset`` excludes for a query, such as itself.

    ``hits`` are at `search_depth`, of the rows ``queries``, and ``k`` documents of each are kept.
    """
    excluded = dataset.excluded_rows(dataset.queries.ids)
    return exclude_documents(hits, excluded[queries], k) if excluded.size else hits


def judge(dataset: Dataset, run: Run) -> Qrels:
    """Return judgements of ``run``: the qrels of ``dataset``, or a search for its answers."""
    if dataset.answers is None:
        return dataset.qrels
    corpus = dataset.corpus
    rows = corpus.rows_of(run.ids.to_pylist())
    return judge_answers(run, dataset.answers, rows, corpus.texts_at)


def score_run(
    dataset: Dataset, run: Run, names: Sequence[str], depth: int
) -> tuple[Scores, dict[str, Any]]:
    """Score a run that follows the protocol, by measures of which the main one comes first.

    Returns:
        The scores, and the fields ``judged_at_10``, ``tie_low`` and ``tie_high`` of a result.
    """
    judgements = judge(dataset, run)
    queries = dataset.queries.ids if dataset.answers is not None else None
    scores = score(run, judgements, names, queries)
    judged = None
    if queries is None and depth >= parse_measure(JUDGED).cutoff:
        judged = score(run, judgements, [JUDGED]).mean(JUDGED)
    low, high = None, None
    if parse_measure(names[0]).native:
        low, high = tie_bounds(run, judgements, names[0], queries)
    return scores, {"judged_at_10": judged, "tie_low": low, "tie_high": high}


def common_measure(datasets: Sequence[Dataset], wanted: str | None) -> str:
    """Return the measure to compare collections by: the wanted one, or their main measure."""
    mains = sorted({dataset.metadata.main_measure for dataset in datasets})
    if wanted is None and len(mains) > 1:
        problem = f"the main measures of the collections differ: {', '.join(mains)}"
        raise BenchError(problem, "Choose a measure with --measure.")
    measure = parse_measure(mains[0] if wanted is None else wanted).name
    for dataset in datasets:
        resolve_measures(dataset, (measure,), None)
    return measure


def tokenize(text: str) -> list[str]:
    """Return the lower-case tokens of ``text``, as DPR's ``SimpleTokenizer`` does.

    A token is a run of letters, digits and marks, or any other single character that is neither
    white space nor a control character.
    """
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def judge_answers(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    corpus_rows: Int64Array,
    texts_at: Callable[[Int64Array], Sequence[str]],
) -> Qrels:
    """Judge the documents of each question by its answers: 1 if one occurs, else 0.

    With these judgements ``Success@k`` is DPR's top-k accuracy. Only retrieved documents are
    judged, so pass all questions to ``score(..., queries=...)`` as its denominator, and use no
    measure that needs judgements of other documents (recall, nDCG, AP).

    Args:
        run: rankings. Questions that are not in ``answers`` are left out.
        answers: accepted answers by question id.
        corpus_rows: int64 ``(m,)``, corpus row of each document of ``run.ids``, -1 if it has none.
        texts_at: returns the texts at some corpus rows, each requested once in corpus order.

    Raises:
        BenchError: an answer has no token, or a document to judge is not in the corpus.
    """
    needles = {query_id: _answer_tokens(accepted) for query_id, accepted in answers.items()}
    query_numbers = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    is_wanted = np.array([query_id in answers for query_id in run.query_ids], dtype=bool)
    rows = np.flatnonzero(is_wanted[query_numbers])
    query_ids = tuple(run.query_ids[number] for number in query_numbers[rows])
    grades = np.zeros(len(rows), dtype=np.int32)
    wanted = corpus_rows[run.documents[rows]]
    if absent := rows[wanted < 0].tolist():
        example = run.ids[int(run.documents[absent[0]])].as_py()
        raise BenchError(
            f"{len(absent):,} of {len(rows):,} documents of the run are not in the corpus, such as "
            f"{example!r}, so no answers can be found in them",
            "Check that the run is of the same corpus.",
        )
    judged, codes = np.unique(wanted, return_inverse=True)
    by_document = np.argsort(codes, kind="stable")
    ordered = codes[by_document]
    for start in range(0, len(judged), _DOCUMENTS_AT_ONCE):
        some = judged[start : start + _DOCUMENTS_AT_ONCE]
        bodies = [_join_tokens(tokenize(text)) for text in texts_at(some)]
        first, last = np.searchsorted(ordered, [start, start + len(some)])
        for pair in by_document[first:last]:
            body = bodies[codes[pair] - start]
            grades[pair] = any(needle in body for needle in needles[query_ids[pair]])
    doc_ids = run.ids.take(pa.array(run.documents[rows]))
    return Qrels(query_ids, tuple(doc_ids.to_pylist()), grades)


def _answer_tokens(answers: Sequence[str]) -> tuple[str, ...]:
    """Return the token sequences of some answers, as strings."""
    cut = {answer: tokenize(answer) for answer in answers}
    if empty := [answer for answer, words in cut.items() if not words]:
        raise BenchError(f"answer {empty[0]!r} has no letter, digit or symbol to search for")
    return tuple(_join_tokens(words) for words in cut.values())


def _join_tokens(words: Sequence[str]) -> str:
    """Join tokens by single spaces, so that substrings of the result are token sequences."""
    return f" {' '.join(words)} "


class SuiteMean(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of one measure of one model over a suite.

    Attributes:
        model: name of the model; "" if it is not named.
        suite: name of the suite.
        measure: name of the measure.
        value: mean; None unless every member has a score.
        members: number of members; a suite among them counts once.
        missing: members without a score.
        weighted: whether members have different weights.
        zero_shot: mean over the members that the model was not trained on; None if a score is
            missing or the model was trained on all members.
        zero_shot_members: number of members behind ``zero_shot``.
    """

    model: str = ""
    suite: str
    measure: str
    value: float | None
    members: int
    missing: tuple[str, ...]
    zero_shot: float | None
    zero_shot_members: int
    weighted: bool = False


def suite_mean(
    suite: str,
    measure: str,
    values: Mapping[str, float],
    in_domain: Collection[str] = (),
    model: str = "",
) -> SuiteMean:
    """Compute the mean of ``values``, a model's scores by one measure by collection, over a suite.

    A member that is a suite counts as in-domain if the model was trained on one of its collections.
    """
    shares = member_weights(suite)
    scores = {
        name: suite_mean(name, measure, values).value if is_suite(name) else values.get(name)
        for name in shares
    }
    missing = tuple(member for member, value in scores.items() if value is None)
    known = {member: value for member, value in scores.items() if value is not None}
    unseen = [member for member in known if not set(collections_of(member)) & set(in_domain)]

    def mean(members: Collection[str]) -> float | None:
        if missing or not members:
            return None
        return fmean([known[member] for member in members], [shares[member] for member in members])

    return SuiteMean(
        model=model,
        suite=suite,
        measure=measure,
        value=mean(known),
        members=len(shares),
        missing=missing,
        zero_shot=mean(unseen),
        zero_shot_members=len(unseen),
        weighted=len(set(shares.values())) > 1,
    )


def suite_means(suite: str, results: Mapping[str, Result], model: str = "") -> Iterator[SuiteMean]:
    """Yield the mean of a model over a suite by each measure, from its results by collection.

    Results on collections that differ from the published ones are gaps.
    """
    in_domain = {name for name, result in results.items() if result.in_domain}
    for measure in dict.fromkeys(key for result in results.values() for key in result.measures):
        values = {
            name: result.measures[measure]
            for name, result in results.items()
            if measure in result.measures and not result.protocol.is_altered
        }
        yield suite_mean(suite, measure, values, in_domain, model)


def member_weights(suite: str) -> dict[str, float]:
    """Return the declared weight of each member of ``suite``, or 1 for each."""
    declared = suite_for(suite)
    weights = declared.weights or (1.0,) * len(declared.members)
    return dict(zip(declared.members, weights, strict=True))


def suite_weights(suite: str) -> dict[str, float]:
    """Return the weight of each collection in the mean of ``suite``.

    A suite among the members counts as one member.
    """
    shares = member_weights(suite)
    total = sum(shares.values())
    weights: dict[str, float] = {}
    for member, share in shares.items():
        inner = suite_weights(member) if is_suite(member) else {member: 1.0}
        for name, weight in inner.items():
            weights[name] = weights.get(name, 0.0) + weight * share / total
    return weights


def mean_weights(typed: Iterable[str]) -> dict[str, float]:
    """Return the weight of each collection in the mean of the ``typed`` names, in any order.

    A member of a suite weighs as much as a collection that was typed itself (on average, if members
    have weights). A suite among the members counts once, even if its collections were typed, too.
    """
    weights: dict[str, float] = {}
    for name in typed:
        if is_suite(name):
            count = len(suite_for(name).members)
            inner = {member: count * weight for member, weight in suite_weights(name).items()}
        else:
            inner = {name: 1.0}
        weights |= {
            member: min(weight, weights.get(member, weight)) for member, weight in inner.items()
        }
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def suites_inner_first(names: Iterable[str]) -> list[str]:
    """Return the suites among ``names`` without duplicates, each after those it contains."""
    ordered: dict[str, None] = {}
    for name in names:
        if is_suite(name):
            ordered |= dict.fromkeys([*suites_inner_first(suite_for(name).members), name])
    return list(ordered)
