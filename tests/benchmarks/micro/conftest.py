"""Inputs that several micro-benchmarks share, always the same, and what a timing depends on.

pytest tests/benchmarks/micro --benchmark-save=before
pytest tests/benchmarks/micro --benchmark-compare --benchmark-compare-fail=median:10%
"""

import importlib.metadata
import itertools
import os
from typing import Any

import numpy as np
import pytest

from datasets_cfg.dataset import EMBEDDED
from datasets_cfg.readers.beir import read_documents

CHARACTERS = 1000  # of a text: about a passage
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
    documents = read_documents(EMBEDDED / "stdlib-code" / "corpus.jsonl.gz")
    return [one.text[:CHARACTERS] for one in itertools.islice(documents, 500)]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
