"""Numbers of examples of property tests: all in the full gate, a tenth before a commit."""

from typing import Any

from hypothesis import settings

FULL = 100  # examples of the profile "full", and of a test that states no number


def register_profiles() -> None:
    """Register and load the profiles; ``--hypothesis-profile=full`` chooses the other one."""
    # A crowded machine is no failure of what is tested.
    settings.register_profile("fast", deadline=None, max_examples=FULL // 10)
    settings.register_profile("full", deadline=None, max_examples=FULL)
    settings.load_profile("fast")


def with_examples(count: int, **others: Any) -> settings:
    """Return settings for ``count`` examples in the full gate, and for fewer in the fast suite."""
    return settings(max_examples=max(5, count * settings().max_examples // FULL), **others)
