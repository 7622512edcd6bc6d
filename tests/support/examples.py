"""Numbers of examples of property tests: five times as many in the full gate as in `tox`."""

from typing import Any

from hypothesis import settings

FULL, FAST = 50, 10  # examples of a test that states no number


def register_profiles() -> None:
    """Register and load the profiles; ``--hypothesis-profile=full`` chooses the other one."""
    # A crowded machine is no failure of what is tested.
    settings.register_profile("fast", deadline=None, max_examples=FAST)
    settings.register_profile("full", deadline=None, max_examples=FULL)
    settings.load_profile("fast")


def with_examples(count: int, **others: Any) -> settings:
    """Return settings for ``count`` examples in the full gate, and a fifth in the fast suite."""
    return settings(max_examples=max(5, count * settings().max_examples // FULL), **others)
