"""What commands that take several collections check before any work."""

from collections import Counter
from collections.abc import Sequence

from foundation.errors import BenchError


def check_once(names: Sequence[str]) -> None:
    """Refuse a collection that is named twice.

    Raises:
        BenchError: one is.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise BenchError(f"the collection {name} is named {times} times", "name it once")
