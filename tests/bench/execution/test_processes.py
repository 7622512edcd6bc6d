"""How many workers there are, and what each of them sees of the machine."""

import pytest

from bench.execution.pool import LEAST_TILE_ROWS
from bench.execution.processes import environments, gpu_count, worker_count
from foundation.errors import BenchError
from tests.support.engines import Bed


@pytest.mark.parametrize(
    ("asked", "processors", "gpus", "count"),
    [(3, 64, 8, 3), (None, 64, 8, 8), (None, 64, 0, 8), (None, 2, 0, 1)],
)
def test_there_is_a_worker_for_each_gpu_or_for_eight_processors(asked, processors, gpus, count):
    assert worker_count(asked, processors, gpus) == count


def test_threads_are_divided_and_gpus_dealt_out_among_workers(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    shares = environments(workers=3, threads=8, gpus=2)
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares] == ["3", "5", "3"]
    assert [share["OMP_NUM_THREADS"] for share in shares] == ["2", "2", "2"]
    assert environments(workers=3, threads=2, gpus=0) == 3 * [{"OMP_NUM_THREADS": "1"}]


def test_workers_use_no_gpu_where_the_processor_was_asked_for():
    assert gpu_count("cpu") == 0
    with pytest.raises(BenchError, match="--workers use every GPU, and --device cuda:1 is one"):
        gpu_count("cuda:1")


@pytest.mark.parametrize("rows", [1, LEAST_TILE_ROWS, LEAST_TILE_ROWS + 1, 21_015_324])
@pytest.mark.parametrize("spreads", [False, True])
def test_tiles_cover_every_row_once_and_there_is_one_where_nothing_is_won(
    rows, spreads, collection, processes, tmp_path, monkeypatch
):
    monkeypatch.setattr(processes, "spreads_search", spreads)
    tiles = Bed(tmp_path, collection, "hashing").pooled(processes).tiles(rows)
    assert [tile.start for tile in tiles] == [0, *(tile.stop for tile in tiles[:-1])]
    assert tiles[-1].stop == rows
    assert len(tiles) == (
        4
        if spreads and rows > 4 * LEAST_TILE_ROWS
        else 2
        if spreads and rows > LEAST_TILE_ROWS
        else 1
    )
