"""Keys, locks, shards and the reading of them, one at a time."""

import hashlib
import threading

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.device_search import DeviceSearch
from bench.evaluation.exact import exact_search
from bench.store.shards import (
    GAP_BYTES,
    PendingShard,
    ShardManifest,
    StoredVectors,
    document_keys,
    find_rows,
    query_keys,
    read_shard,
    write_shard,
)
from foundation.errors import BenchError
from foundation.files import FileLock
from tests.support.exact_oracle import search_on_device
from tests.support.examples import with_examples
from tests.support.stores import RECIPE

HALVES = msgspec.structs.replace(RECIPE, store_dtype="float16")
# Few values, so that upper halves, lower halves and whole keys coincide.
few_keys = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30)


def as_keys(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


def texts(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]


def test_a_key_is_blake2b_of_role_lengths_title_and_text():
    content = (2).to_bytes(8, "little") + "é".encode() + (1).to_bytes(8, "little") + b"b"
    expected = hashlib.blake2b(content, digest_size=16, person=b"document").digest()
    assert document_keys(["é"], ["b"]).astype("<u8").tobytes() == expected


def test_title_text_and_role_cannot_be_mistaken_for_each_other():
    keys = [*document_keys(["a", "ab", "", "abc"], ["bc", "c", "abc", ""]), *query_keys(["abc"])]
    assert len({key.tobytes() for key in keys}) == 5


@given(keys=few_keys, among=few_keys, at_once=st.integers(1, 9))
def test_find_gives_the_first_row_of_a_key(keys, among, at_once):
    expected = [among.index(key) if key in among else -1 for key in keys]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.store.shards.LOOKUP_CHUNK", at_once)
        assert find_rows(as_keys(keys), as_keys(among)).tolist() == expected


def pending(keys):
    return PendingShard(keys, np.arange(len(keys)))


def test_a_shard_records_the_content_of_its_files(tmp_path):
    keys = query_keys(texts(3))
    vectors = np.arange(24, dtype=np.float32).reshape(3, 8)
    path = write_shard(tmp_path, "query", RECIPE, pending(keys), vectors)
    content, names = vectors.astype("<f4").tobytes(), keys.astype("<u8").tobytes()
    assert path.stem == pending(keys).name == hashlib.blake2b(names, digest_size=16).hexdigest()
    assert path.with_suffix(".f32").read_bytes() == content
    assert path.with_suffix(".keys").read_bytes() == names
    assert msgspec.json.decode(path.read_bytes(), type=ShardManifest) == ShardManifest(
        format=1,
        role="query",
        rows=3,
        dim=8,
        dtype="float32",
        vectors_sha256=hashlib.sha256(content).hexdigest(),
        keys_sha256=hashlib.sha256(names).hexdigest(),
    )


@pytest.mark.parametrize("largest", [65_520.0, 1e30])
def test_values_beyond_float16_are_refused_and_its_largest_is_kept(largest, tmp_path):
    keys, vectors = query_keys(["a"]), np.full((1, 8), 65_504, np.float32)
    shard, _ = read_shard(write_shard(tmp_path, "query", HALVES, pending(keys), vectors))
    stored = StoredVectors((shard,), np.array([0]), 8)
    assert np.array_equal(stored.rows(np.array([0])), vectors)
    vectors[0, 3] = -largest
    with pytest.raises(BenchError, match="is too large for float16"):
        write_shard(tmp_path, "query", HALVES, pending(keys), vectors)


@pytest.fixture(scope="module")
def scattered(tmp_path_factory):
    """Vectors in shards of 1, 700 and 40 rows, each row longer than a quarter of a gap."""
    folder = tmp_path_factory.mktemp("scattered")
    dim = GAP_BYTES // 16
    vectors = np.random.default_rng(0).standard_normal((741, dim), dtype=np.float32)
    found = {}
    for recipe in (RECIPE, HALVES):
        shards = []
        for start, stop in ((0, 1), (1, 701), (701, 741)):
            batch = pending(query_keys(texts(741)[start:stop]))
            here, some = folder / recipe.store_dtype, vectors[start:stop]
            shards.append(read_shard(write_shard(here, "query", recipe, batch, some)))
        found[recipe.store_dtype] = tuple(shard for shard, _ in shards)
    return vectors, found


@with_examples(30)
@given(data=st.data(), dtype=st.sampled_from(["float32", "float16"]))
def test_any_rows_in_any_order_are_those_of_numpy(data, dtype, scattered):
    array, shards = scattered
    runs = data.draw(st.lists(st.tuples(st.integers(0, 740), st.integers(1, 60)), max_size=8))
    places = np.array([p for first, n in runs for p in range(first, min(741, first + n))], np.int64)
    expected = array[places].astype(dtype).astype(np.float32)
    stored = StoredVectors(shards[dtype], places, array.shape[1])
    assert np.array_equal(stored.rows(np.arange(len(places))), expected)
    rows = data.draw(st.integers(1, 900))
    tiles = list(stored.tiles(rows))
    assert [start for start, _ in tiles] == list(range(0, len(places), rows))
    for start, tile in tiles:
        assert tile.flags.c_contiguous
        assert np.array_equal(tile, expected[start : start + rows])
    for (start, tile), (first, kept) in zip(tiles, stored.stored_tiles(rows), strict=True):
        assert (first, kept.dtype, kept.flags.c_contiguous) == (start, np.dtype(dtype), True)
        assert np.array_equal(kept, tile)


def test_a_search_on_a_device_gets_float16_as_it_is_stored(scattered, monkeypatch):
    _, shards = scattered
    stored = StoredVectors(shards["float16"], np.arange(741), GAP_BYTES // 16)
    search = stored, stored.rows(np.arange(5)), 20, np.arange(741)
    seen, stage = [], DeviceSearch.stage
    monkeypatch.setattr(
        DeviceSearch, "stage", lambda *given: seen.append(given[2].dtype) or stage(*given)
    )
    hits = search_on_device(*search, tile_rows=300)
    truth = exact_search(*search, tile_rows=300)
    assert seen == [np.float16] * 3
    assert np.array_equal(hits.rows, truth.rows)
    assert np.array_equal(hits.scores, truth.scores)


def test_only_one_process_holds_a_claim_which_others_see_and_it_leaves_no_file(tmp_path):
    path, locks = tmp_path / "name.lock", []
    first = FileLock.try_acquire(path)
    assert FileLock.try_acquire(path) is None
    waiting = threading.Thread(target=lambda: locks.append(FileLock.acquire(path)))
    waiting.start()
    first.release()
    first.release()
    waiting.join()
    assert path.exists()
    assert FileLock.try_acquire(path) is None
    locks[0].release()
    assert list(tmp_path.iterdir()) == []
    assert FileLock.try_acquire(path) is not None
