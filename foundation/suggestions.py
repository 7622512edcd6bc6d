"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean A or B?``, or ``otherwise`` where no known name is close.

    Letter case is ignored.
    """
    by_lower = {name.lower(): name for name in sorted(known, reverse=True)}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(by_lower[name] for name in close)}?" if close else otherwise
