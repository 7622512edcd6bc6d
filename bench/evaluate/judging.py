"""A run on a collection becomes scores, by the rules of that collection; means over suites."""

import shlex
import unicodedata
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import regex

from bench.evaluate.runs import Run
from bench.evaluate.scoring import NO_CUTOFF, Measure, Scores, parse_measure, score, tie_bounds
from bench.results.result import Protocol
from datasets_cfg.catalogue import is_suite, suite_for
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers import Qrels
from foundation.arrays import Int64Array
from foundation.errors import BenchError

JUDGED = "Judged@10"
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_DOCUMENTS_AT_ONCE = 4096
JUDGED_BY_ANSWERS = ("Success", "RR")  # need no judgement of what was not retrieved


def resolve_measures(
    dataset: Dataset, wanted: Sequence[str] | None, depth: int | None
) -> tuple[str, ...]:
    """Canonical names, the collection's main measure first, then those wanted or its own.

    Args:
        wanted: names; None for the collection's further measures.
        depth: documents per query; None for the collection's.

    Raises:
        BenchError: an unknown measure, one that needs judgements where answers decide, or one
            that looks at more documents than are retrieved.
    """
    further = dataset.facts.measures if wanted is None else wanted
    measures = [parse_measure(name) for name in (dataset.facts.main_measure, *further)]
    for measure in measures if dataset.answers is not None else ():
        if measure.kind not in JUDGED_BY_ANSWERS:
            raise BenchError(
                f"{measure.name} needs judgements, and {dataset.name} is judged by answer strings",
                f"use {' or '.join(f'{kind}@k' for kind in JUDGED_BY_ANSWERS)}",
            )
    _check_cutoffs(dataset.name, measures, depth or dataset.facts.depth)
    return tuple(dict.fromkeys(measure.name for measure in measures))


def _check_cutoffs(collection: str, measures: Sequence[Measure], depth: int) -> None:
    """Refuse a measure of more documents than are retrieved: R@100 of five would be R@5.

    The main measure comes first and is always computed; others can be left out.
    """
    cutoffs = {measure.name: measure.cutoff for measure in measures if measure.cutoff != NO_CUTOFF}
    beyond = {name: cutoff for name, cutoff in cutoffs.items() if cutoff > depth}
    if not beyond:
        return
    name, deepest = max(beyond.items(), key=lambda item: item[1])
    main = measures[0]
    within = [measure.name for measure in measures if measure.name not in beyond]
    shallow = [
        f"--measure {shlex.quote(measure_name)}"
        for measure_name in dict.fromkeys(within[1:] or within)
    ]
    if main.name in beyond:
        shallow = [f"--depth {main.cutoff}", f"--measure {shlex.quote(main.name)}"]
    choices = [f"--depth {deepest}", *([" ".join(shallow)] if deepest > main.cutoff else [])]
    raise BenchError(
        f"{name} on {collection} looks at {deepest:,} documents of each query, and the depth is "
        f"{depth:,}",
        ", or ".join(choices),
    )


def check_relevant(dataset: Dataset) -> None:
    """Refuse a collection in which no run can find anything.

    Raises:
        BenchError: the corpus has none of the relevant documents.
    """
    relevant = dict.fromkeys(document for _, document, grade in dataset.qrels if grade > 0)
    if not relevant or (dataset.corpus.rows_of(tuple(relevant)) >= 0).any():
        return
    example, stripped = next(iter(relevant)), tuple(id_.strip() for id_ in relevant)
    spaces = int((dataset.corpus.rows_of(stripped) >= 0).sum())
    raise BenchError(
        f"{dataset.name}: the corpus has none of the {len(relevant):,} relevant documents, such as "
        f"{example!r}; its first document is {dataset.corpus.ids[0].as_py()!r}",
        f"remove the white space around ids in {dataset.reader.judgement_files()[-1]}: "
        f"{spaces:,} of them are in the corpus without it"
        if spaces
        else "are corpus and qrels of the same release?",
    )


def apply_protocol(run: Run, dataset: Dataset, depth: int) -> Run:
    """Somebody's run as this collection's protocol retrieves: self-matches out, cut at depth."""
    queries = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    kept = np.ones(len(run), dtype=bool)
    if dataset.facts.exclude_self:
        own = run.positions_of(pa.array(run.query_ids, pa.large_string()))
        kept = run.documents != own[queries]
    before = np.concatenate([[0], np.cumsum(kept)])
    ranks = before[:-1] - before[run.offsets[queries]]
    kept &= ranks < depth
    offsets = np.concatenate([[0], np.cumsum(kept)])[run.offsets]
    return Run(run.query_ids, offsets, run.ids, run.documents[kept], run.scores[kept])


def judge(dataset: Dataset, run: Run, depth: int) -> Qrels:
    """Judgements of a collection: its qrels, or its answers looked up in the passages found."""
    if dataset.answers is None:
        return dataset.qrels
    corpus = dataset.corpus
    corpus.check()
    rows = corpus.rows_of(run.ids.to_pylist())
    return judge_answers(run, dataset.answers, rows, corpus.texts_at, depth)


def score_run(
    dataset: Dataset, run: Run, names: Sequence[str], depth: int
) -> tuple[Scores, dict[str, Any]]:
    """Scores of the measures, and by name the fields of a result on how sure the main one is."""
    judgements = judge(dataset, run, depth)
    queries = dataset.queries.ids if dataset.answers is not None else None
    scores = score(run, judgements, names, queries)
    judged = None
    if queries is None and depth >= parse_measure(JUDGED).cutoff:
        judged = score(run, judgements, [JUDGED]).mean(JUDGED)
    low, high = None, None
    if parse_measure(names[0]).native:
        low, high = tie_bounds(run, judgements, names[0], queries)
    return scores, {"judged_at_10": judged, "tie_low": low, "tie_high": high}


def make_protocol(
    dataset: Dataset, depth: int | None, corpus_sha256: str, official: bool
) -> Protocol:
    """The protocol that two results on this collection must share to be compared.

    Args:
        depth: documents per query; None for the collection's.
        corpus_sha256: "" if a run file is scored without the corpus.
    """
    facts = dataset.facts
    return Protocol(
        collection=facts.name,
        version=facts.version,
        split=facts.split,
        title_track=facts.title_track,
        corpus_sha256=corpus_sha256,
        queries_sha256=dataset.queries_sha256,
        qrels_sha256=dataset.qrels_sha256,
        exclude_self=bool(facts.exclude_self),
        depth=depth or facts.depth,
        official=official,
    )


def common_measure(
    datasets: Sequence[Dataset], wanted: str | None, depth: int | None = None
) -> str:
    """The measure of all collections: the one wanted, or the main one where they agree.

    Args:
        depth: documents per query; None for each collection's.

    Raises:
        BenchError: main measures differ, or a collection cannot be measured so.
    """
    mains = sorted({dataset.facts.main_measure for dataset in datasets})
    if wanted is None and len(mains) > 1:
        raise BenchError(
            f"the main measures of the collections differ: {', '.join(mains)}",
            "choose one with --measure",
        )
    measure = parse_measure(mains[0] if wanted is None else wanted).name
    for dataset in datasets:
        resolve_measures(dataset, (measure,), depth)
    return measure


def tokenize(text: str) -> list[str]:
    """Lower-cased tokens: runs of letters, digits and marks, and single other characters."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def judge_answers(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    corpus_rows: Int64Array,
    texts_at: Callable[[Int64Array], Sequence[str]],
    depth: int,
) -> Qrels:
    """Judge the first ``depth`` documents of each question by its answers: 1 a hit, 0 none.

    With these judgements ``Success@k`` is DPR's top-k accuracy. Only what was retrieved is
    judged, so hand all questions to ``score(..., queries=...)`` as its denominator, and use no
    measure that needs to know what was not retrieved (recall, nDCG, AP).

    Args:
        run: questions that are not in ``answers`` are left out.
        answers: question id -> accepted answers.
        corpus_rows: int64 ``(m,)``, row in the corpus of each document of ``run.ids``; -1 for
            none.
        texts_at: bodies at rows of the corpus; each is asked for once, in the order of the corpus.
        depth: how many documents of each question to judge.

    Raises:
        BenchError: an answer has no token, or a document to judge is not in the corpus.
    """
    needles = {query_id: _answer_tokens(accepted) for query_id, accepted in answers.items()}
    rows, query_numbers = _judged_rows(run, needles, depth)
    query_ids = tuple(run.query_ids[place] for place in query_numbers)
    grades = np.zeros(len(rows), dtype=np.int32)
    wanted = corpus_rows[run.documents[rows]]
    if absent := rows[wanted < 0].tolist():
        example = run.ids[int(run.documents[absent[0]])].as_py()
        raise BenchError(
            f"answers are looked up in passages, and {len(absent):,} of {len(rows):,} documents of "
            f"the run are not in the corpus, such as {example!r}",
            "is the run of the same corpus?",
        )
    judged, codes = np.unique(wanted, return_inverse=True)
    by_document = np.argsort(codes, kind="stable")
    ordered = codes[by_document]
    for start in range(0, len(judged), _DOCUMENTS_AT_ONCE):
        some = judged[start : start + _DOCUMENTS_AT_ONCE]
        bodies = [_join_tokens(tokenize(text)) for text in texts_at(some)]
        first, last = np.searchsorted(ordered, [start, start + len(some)])
        for pair in by_document[first:last]:
            grades[pair] = _contains_any(bodies[codes[pair] - start], needles[query_ids[pair]])
    doc_ids = run.ids.take(pa.array(run.documents[rows]))
    return Qrels(query_ids, tuple(doc_ids.to_pylist()), grades)


def _judged_rows(run: Run, wanted: Container[str], depth: int) -> tuple[Int64Array, Int64Array]:
    """Rows within the depth of wanted queries, and the number of each row's query."""
    query_numbers = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    is_wanted = np.array([query_id in wanted for query_id in run.query_ids], dtype=bool)
    ranks = np.arange(len(run)) - run.offsets[query_numbers]
    rows = np.flatnonzero((ranks < depth) & is_wanted[query_numbers])
    return rows, query_numbers[rows]


def _answer_tokens(answers: Sequence[str]) -> tuple[str, ...]:
    cut = {answer: tokenize(answer) for answer in answers}
    if empty := [answer for answer, words in cut.items() if not words]:
        raise BenchError(f"answer {empty[0]!r} has no letter, digit or sign to look for")
    return tuple(_join_tokens(words) for words in cut.values())


def _join_tokens(words: Sequence[str]) -> str:
    """Tokens between single spaces: no token holds a space, so substrings are token sequences."""
    return f" {' '.join(words)} "


def _contains_any(body: str, needles: Sequence[str]) -> bool:
    return any(needle in body for needle in needles)


class SuiteMean(msgspec.Struct, frozen=True):
    """Mean of one measure of one model over a suite.

    Attributes:
        value: None unless every member has a score.
        members: how many members the mean is over; a suite among them counts once.
        missing: members without a score.
        weighted: True if members do not count the same.
        zero_shot: mean over the members that the model was not trained on; None if a score
            is missing or all members are in-domain.
        zero_shot_members: how many those are.
    """

    suite: str
    measure: str
    value: float | None
    members: int
    missing: tuple[str, ...]
    zero_shot: float | None
    zero_shot_members: int
    weighted: bool = False


def suite_mean(
    suite: str, measure: str, values: Mapping[str, float], in_domain: Collection[str] = ()
) -> SuiteMean:
    """The mean of a suite.

    Args:
        values: score by collection.
        in_domain: collections that the model was trained on; a suite with one of them is too.
    """
    shares = member_weights(suite)
    scores = {member: member_score(member, values) for member in shares}
    missing = tuple(member for member, value in scores.items() if value is None)
    known = {member: value for member, value in scores.items() if value is not None}
    unseen = [member for member in known if not _includes_any(member, in_domain)]

    def mean(members: Collection[str]) -> float | None:
        if missing or not members:
            return None
        return fmean([known[member] for member in members], [shares[member] for member in members])

    return SuiteMean(
        suite=suite,
        measure=measure,
        value=mean(known),
        members=len(shares),
        missing=missing,
        zero_shot=mean(unseen),
        zero_shot_members=len(unseen),
        weighted=len(set(shares.values())) > 1,
    )


def member_score(member: str, values: Mapping[str, float]) -> float | None:
    """Score of a collection, or mean of a suite among the members; None if not complete."""
    if not is_suite(member):
        return values.get(member)
    return suite_mean(member, "", values).value


def member_weights(suite: str) -> dict[str, float]:
    """Return the declared weight of each member of a suite, or 1 for each."""
    declared = suite_for(suite)
    weights = declared.weights or (1.0,) * len(declared.members)
    return dict(zip(declared.members, weights, strict=True))


def suite_weights(suite: str) -> dict[str, float]:
    """Weight of each collection in the mean of a suite; a suite among the members counts once."""
    shares = member_weights(suite)
    total = sum(shares.values())
    weights: dict[str, float] = {}
    for member, share in shares.items():
        inner = suite_weights(member) if is_suite(member) else {member: 1.0}
        for name, weight in inner.items():
            weights[name] = weights.get(name, 0.0) + weight * share / total
    return weights


def mean_weights(typed: Iterable[str]) -> dict[str, float]:
    """Weights of the collections in the mean of what was typed, in whatever order.

    A member of a suite weighs as much as a collection that was typed, on the average where members
    have weights; a suite among the members counts once, also where its collections were typed too.
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
    """The suites among the names, each after the suites that it contains; no duplicates."""
    ordered: dict[str, None] = {}
    for name in names:
        if is_suite(name):
            ordered |= dict.fromkeys([*suites_inner_first(suite_for(name).members), name])
    return list(ordered)


def _includes_any(member: str, in_domain: Collection[str]) -> bool:
    if not is_suite(member):
        return member in in_domain
    return any(_includes_any(inner, in_domain) for inner in suite_for(member).members)
