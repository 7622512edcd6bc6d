"""Answer-string matching against DPR's rule, written again slowly."""

import unicodedata

import numpy as np
import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.evaluation import judging as answers_module
from bench.evaluation.judging import judge_answers, tokenize
from bench.evaluation.runs import Run
from bench.evaluation.scoring import score
from foundation.errors import BenchError

CHARACTERS = "aAbé\u0301İßΣ中١9,.-'\u2019\u00a0\u200b \n"


def slow_tokens(text: str) -> list[str]:
    """DPR's SimpleTokenizer, one match at a time."""
    pattern = regex.compile(
        r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])",
        flags=regex.IGNORECASE | regex.UNICODE | regex.MULTILINE,
    )
    normal = unicodedata.normalize("NFD", text)
    return [match.group().lower() for match in pattern.finditer(normal)]


def slow_has_answer(answers: list[str], passage: str) -> bool:
    """DPR's comparison of token lists at every position."""
    body = slow_tokens(passage)
    for answer in answers:
        wanted = slow_tokens(answer)
        for start in range(len(body) - len(wanted) + 1):
            if body[start : start + len(wanted)] == wanted:
                return True
    return False


def has_answer(answers: list[str], passage: str) -> bool:
    """The judgement of one retrieved passage."""
    run = Run.from_rows(["q"], ["d"], [1.0])
    ((_, _, grade),) = judge_answers(run, {"q": answers}, np.array([0]), lambda _: [passage])
    return bool(grade)


@pytest.mark.parametrize(
    ("answer", "passage", "expected"),
    [
        ("Wilhelm Röntgen", "awarded to WILHELM RÖNTGEN, of Germany", True),
        ("Ro\u0308ntgen", "Röntgen", True),
        ("art", "The party started", False),
        ("May 18, 2018", "on May 18 , 2018.", True),
        ("May 18 2018", "on May 18, 2018.", False),
        ("18", "in 1876 and 2018", False),
        ("U.S.", "the U.S. Senate", True),
        ("new york", "york new", False),
    ],
)
def test_an_answer_is_found_where_its_tokens_are_adjacent(answer, passage, expected):
    assert has_answer([answer], passage) is expected


@given(st.text(CHARACTERS, max_size=12))
def test_tokens_are_those_of_the_simple_tokenizer(text):
    assert tokenize(text) == slow_tokens(text)


def test_an_answer_without_tokens_is_refused():
    with pytest.raises(BenchError, match="no letter"):
        has_answer(["Rome", " \u200b"], "It was built in Rome.")


TEXTS = {"d1": "Rome was not built in a day", "d2": "Paris", "d3": "the day in Paris"}
ANSWERS = {"q1": ("rome",), "q2": ("Paris", "London"), "q3": ("Oslo",)}


NAMES = list(TEXTS)


def texts_at(rows: np.ndarray) -> list[str]:
    return [TEXTS[NAMES[row]] for row in rows]


def rows_of(run: Run) -> np.ndarray:
    return np.array([NAMES.index(doc_id) for doc_id in run.ids.to_pylist()])


@pytest.fixture
def run() -> Run:
    rows = [("q1", "d2", 2), ("q1", "d1", 1), ("q2", "d1", 3), ("q2", "d2", 2), ("q2", "d3", 1)]
    return Run.from_rows(*zip(*rows, strict=True))


def test_success_at_k_is_top_k_accuracy_over_all_questions(run):
    qrels = judge_answers(run, ANSWERS, rows_of(run), texts_at)
    scores = score(run, qrels, ["Success@1", "Success@2"], queries=tuple(ANSWERS))
    assert scores.mean("Success@1") == 0
    assert scores.mean("Success@2") == 2 / 3
    assert scores.unanswered == 1


WORDS = st.sampled_from(["Oslo", "oslo,", "Röntgen", "May 18", "U.S.", "18", "\u200b", "-"])
PASSAGES = st.lists(st.lists(WORDS, max_size=6).map(" ".join), min_size=1, max_size=8)


@given(PASSAGES, st.lists(st.lists(WORDS, min_size=1, max_size=2).map(" ".join), min_size=1))
def test_every_pair_is_judged_as_if_alone(passages, answers):
    accepted = {str(n): (text,) for n, text in enumerate(answers) if slow_tokens(text)}
    pairs = [(query, str(row)) for query in accepted for row in range(len(passages))]
    assume(pairs)
    run = Run.from_rows(*zip(*pairs, strict=True), [1.0] * len(pairs))
    rows = np.array([int(doc_id) for doc_id in run.ids.to_pylist()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers_module, "_DOCUMENTS_AT_ONCE", 3)
        qrels = judge_answers(run, accepted, rows, lambda some: [passages[i] for i in some])
    assert len(qrels) == len(pairs)
    for query, document, grade in qrels:
        assert grade == slow_has_answer(list(accepted[query]), passages[int(document)])
