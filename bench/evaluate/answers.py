"""Answer-string relevance of DPR (Karpukhin et al. 2020): a passage that holds an answer counts.

The rule is that of DPR's ``qa_validation.py`` with string matching and its ``SimpleTokenizer``:
answer and passage are normalised to NFD, cut into tokens and lower-cased; the answer's tokens must
occur next to each other in the passage's body. Titles are not looked at.
"""

import unicodedata
from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np
import pyarrow as pa
import regex

from bench.evaluate.runs import Run
from datasets_cfg.records import Qrels
from foundation.arrays import Int64Array
from foundation.errors import BenchError

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_DOCUMENTS_AT_ONCE = 4096


def tokens(text: str) -> list[str]:
    """Lower-cased tokens: runs of letters, digits and marks, and single other characters."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def answer_qrels(
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
    needles = {query_id: _needles(accepted) for query_id, accepted in answers.items()}
    rows, places = _judged_rows(run, needles, depth)
    query_ids = tuple(run.query_ids[place] for place in places)
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
        bodies = [_spaced(tokens(text)) for text in texts_at(some)]
        first, last = np.searchsorted(ordered, [start, start + len(some)])
        for pair in by_document[first:last]:
            grades[pair] = _holds_any(bodies[codes[pair] - start], needles[query_ids[pair]])
    doc_ids = run.ids.take(pa.array(run.documents[rows]))
    return Qrels(query_ids, tuple(doc_ids.to_pylist()), grades)


def _judged_rows(run: Run, wanted: Container[str], depth: int) -> tuple[Int64Array, Int64Array]:
    """Rows within the depth of wanted queries, and the number of each row's query."""
    places = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    is_wanted = np.array([query_id in wanted for query_id in run.query_ids], dtype=bool)
    ranks = np.arange(len(run)) - run.offsets[places]
    rows = np.flatnonzero((ranks < depth) & is_wanted[places])
    return rows, places[rows]


def _needles(answers: Sequence[str]) -> tuple[str, ...]:
    cut = {answer: tokens(answer) for answer in answers}
    if empty := [answer for answer, words in cut.items() if not words]:
        raise BenchError(f"answer {empty[0]!r} has no letter, digit or sign to look for")
    return tuple(_spaced(words) for words in cut.values())


def _spaced(words: Sequence[str]) -> str:
    """Tokens between single spaces: no token holds a space, so substrings are token sequences."""
    return f" {' '.join(words)} "


def _holds_any(body: str, needles: Sequence[str]) -> bool:
    return any(needle in body for needle in needles)
