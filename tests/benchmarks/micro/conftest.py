"""Inputs that several micro-benchmarks share, always the same, and what a timing depends on.

pytest tests/benchmarks/micro --benchmark-json=NEW.json
python -m tests.benchmarks.compare_micro OLD.json NEW.json
"""

import importlib
import importlib.metadata
import itertools
import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets_cfg.stdlib_code import functions, source_files

CHARACTERS = 1000  # of a text: about a passage
REFERENCE_ROUNDS = 20  # a quarter of a second: the system's time slices average out
LIBRARIES = ("faiss-cpu", "numpy", "pyarrow", "tokenizers")


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Timings compare only under the same number of threads; libraries explain a change."""
    available = len(os.sched_getaffinity(0))
    machine_info["threads"] = int(os.environ.get("OMP_NUM_THREADS", available))
    machine_info["libraries"] = {name: version(name) for name in LIBRARIES}


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """500 functions of Python's standard library."""
    sources = source_files(Path(sysconfig.get_path("stdlib")))
    return [one.code[:CHARACTERS] for one in itertools.islice(functions(sources), 500)]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def reference(benchmark: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """Time fixed work before and after: it says how busy the machine is, whatever the code."""
    module, _, name = request.config.getoption("benchmark_timer").rpartition(".")
    timer = getattr(importlib.import_module(module), name)
    before = reference_seconds(timer)
    yield
    benchmark.extra_info["reference_s"] = (before + reference_seconds(timer)) / 2


def reference_seconds(timer: Callable[[], float]) -> float:
    """Mean seconds of sorting a million numbers."""
    numbers = np.random.default_rng(0).random(1_000_000, dtype=np.float32)
    np.sort(numbers)
    start = timer()
    for _ in range(REFERENCE_ROUNDS):
        np.sort(numbers)
    return (timer() - start) / REFERENCE_ROUNDS
