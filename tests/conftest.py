"""Fixtures shared by all packages."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import tqdm  # noqa: F401  it reads TQDM_DISABLE once

gc.disable()  # until all is imported: a sixth of the time of collecting the tests

pytest.register_assert_rewrite("tests.support")

from tests.support.collections import Bench  # noqa: E402
from tests.support.examples import register_profiles  # noqa: E402

register_profiles()

IMPORTED = 100  # modules, a library


class FrozenLibraries:
    """Full collections of garbage pass by what imports left behind, most of what there is to see.

    Trainers ask for one at each start, and with all libraries in memory each takes .2 s.
    """

    def __init__(self) -> None:
        self.modules = 0

    def freeze(self) -> None:
        if len(sys.modules) > self.modules + IMPORTED:
            self.modules = len(sys.modules)
            gc.collect()
            gc.freeze()


libraries = FrozenLibraries()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long ones: begun last, they would leave the other processes without work."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    libraries.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    libraries.freeze()


@pytest.fixture(scope="session")
def bench_data() -> Path:
    """Folder of real collections, runs and vectors named by BENCH_DATA."""
    name = os.environ.get("BENCH_DATA")
    if not name:
        pytest.skip("needs real collections: set BENCH_DATA to a folder that holds them")
    return Path(name)


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a command sets for its process ends with the test."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """The command line, with a cache and a results folder of its own."""
    return Bench(tmp_path)
