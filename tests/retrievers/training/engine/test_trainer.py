"""Processes that make the batches of a training."""

import os

import pytest

from retrievers.training.engine.trainer import count_loaders


@pytest.mark.parametrize(
    ("cores", "world", "on_cpu", "count"),
    [
        (64, 1, False, 4),
        (64, 1, True, 0),
        (3, 1, False, 2),
        (1, 1, False, 0),
        (16, 8, False, 1),
        (4, 8, False, 0),
    ],
)
def test_a_gpu_gets_workers_if_cores_are_left(
    cores: int, world: int, on_cpu: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    assert count_loaders(on_cpu) == count
