"""Docstrings keep to plain words: see `tests.prose` for the habits and where each occurs."""

from collections import Counter

from tests.prose import FIRST_LINE, HABITS, docstrings

MOST = dict.fromkeys(HABITS, 20) | {"where": 100, "what": 80, FIRST_LINE: 30}
MOST_UNDOCUMENTED = 20  # public functions of 1,400


def test_docstrings_keep_to_plain_words():
    counts = Counter(habit for docstring in docstrings() for habit in docstring.habits())
    assert {habit: counts[habit] for habit in MOST if counts[habit] > MOST[habit]} == {}


def test_public_functions_explain_their_arguments():
    assert sum(bool(docstring.missing) for docstring in docstrings()) <= MOST_UNDOCUMENTED
