"""Vectors on disk: encoded once, found by content, never half written."""

import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.store import shards
from bench.store.shards import Shard
from bench.store.store import VectorStore
from foundation.errors import BenchError
from retrievers.encoders.hashing import HashingEncoder
from retrievers.models.card import Prompts
from tests.support.examples import with_examples
from tests.support.processes import enlarge, mounted, wait_until
from tests.support.stores import (
    DIM,
    RECIPE,
    CountingEncoder,
    corpus_of,
    directly,
    encode,
    everything,
    files_below,
    numbered,
)

ROWS = 4  # of a shard, in these tests
ROOT = Path(__file__).resolve().parents[3]
texts_of_documents = st.lists(
    st.tuples(st.text(max_size=3), st.text(max_size=4)), min_size=1, max_size=40
)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(shards, "SHARD_ROWS", ROWS)


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(numbered(10), tmp_path / "corpus")


@pytest.fixture
def store(tmp_path):
    return VectorStore(tmp_path / "vectors")


@with_examples(20)
@given(
    first=texts_of_documents,
    second=texts_of_documents,
    shard_rows=st.integers(1, 7),
    tile_rows=st.integers(1, 30),
)
def test_unseen_texts_are_encoded_once_in_order_and_all_vectors_are_those_of_the_encoder(
    first, second, shard_rows, tile_rows, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("stored")
    store, encoder = VectorStore(folder / "vectors"), CountingEncoder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_ROWS", shard_rows)
        encode(store, corpus_of(first, folder / "first"), encoder)
        corpus = corpus_of(second, folder / "second")
        plan, done = store.plan(encoder, corpus), list[int]()
        planned = [second[row] for batch in plan.missing for row in batch.rows]
        assert planned == [text for text in dict.fromkeys(second) if text not in first]
        assert all(len(batch) == shard_rows for batch in plan.missing[:-1])
        assert (plan.vectors is None) == bool(planned)
        vectors = store.documents(encoder, corpus, plan, done.append)
        tiles = list(vectors.tiles(tile_rows))
    expected = directly(corpus)
    assert len(encoder.documents) == len({*first, *second})
    assert sum(done) == plan.missing_rows == len({*second} - {*first})
    assert vectors.shape == expected.shape
    assert everything(vectors).tobytes() == expected.tobytes()
    assert [start for start, _ in tiles] == list(range(0, len(second), tile_rows))
    assert all(tile.dtype == np.float32 and len(tile) <= tile_rows for _, tile in tiles)
    assert np.concatenate([tile for _, tile in tiles]).tobytes() == expected.tobytes()


def test_a_text_as_query_and_as_document_has_two_vectors(store, tmp_path):
    recipe = msgspec.structs.replace(RECIPE, prompts=Prompts(query="q ", document="d "))
    encoder = CountingEncoder(recipe)
    documents = encode(store, corpus_of([("", "same")], tmp_path / "corpus"), encoder)
    queries = store.queries(encoder, ["same"])
    assert encoder.documents == encoder.queries == ["same"]
    assert not np.array_equal(everything(documents), queries)


PLAIN = msgspec.structs.replace(RECIPE, files={"a": "1"})
ASKED = ["one", "two"]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"prompts": Prompts(query="query: ")}, {"queries"}),
        ({"max_query_tokens": 5}, {"queries"}),
        ({"query_files": {"a": "2"}, "query_checkpoint": "x"}, {"queries"}),
        ({"prompts": Prompts(document="passage: ")}, {"documents"}),
        ({"max_document_tokens": 3}, {"documents"}),
        ({"title_join": "pair"}, {"documents"}),
        ({"dim": 16}, {"documents", "queries"}),
        ({"store_dtype": "float16"}, {"documents", "queries"}),
    ],
    ids=lambda value: str(sorted(value)),
)
def test_a_changed_setting_encodes_again_only_the_side_that_it_changes(
    change, again, corpus, store
):
    encode(store, corpus, CountingEncoder(PLAIN))
    store.queries(CountingEncoder(PLAIN), ASKED)
    encoder = CountingEncoder(msgspec.structs.replace(PLAIN, **change))
    vectors, queries = encode(store, corpus, encoder), store.queries(encoder, ASKED)
    encoded = {"documents": encoder.documents, "queries": encoder.queries}
    assert {side for side, texts in encoded.items() if texts} == again
    direct = HashingEncoder(encoder.recipe)
    columns = (corpus.titles.to_pylist(), corpus.texts.to_pylist())
    kept = encoder.recipe.store_dtype
    for found, expected in (
        (everything(vectors), direct.encode_documents(*columns)),
        (queries, direct.encode_queries(ASKED)),
    ):
        assert np.array_equal(found, expected.astype(kept).astype(np.float32))


@pytest.mark.parametrize("content", [b"", b"x" * 176, b"\0" * 16])
def test_damaged_keys_of_a_corpus_are_made_again(content, corpus, store, tmp_path):
    encode(store, corpus)
    (path,) = (tmp_path / "vectors" / "keys").iterdir()
    whole = path.read_bytes()
    path.write_bytes(content)
    assert store.plan(CountingEncoder(), corpus).missing_rows == 0
    assert path.read_bytes() == whole


def flip_a_bit(content: bytes) -> bytes:
    return content[:5] + bytes([content[5] ^ 1]) + content[6:]


def add_a_field(content: bytes) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(content), "more": 1})


Damage = tuple[str, Callable[[bytes], bytes] | None]  # of a file with this suffix; None: it is lost
LOST_VECTORS: Damage = (".f32", None)
CUT_SHORT: Damage = (".f32", lambda content: content[:-4])
LOST_MANIFEST: Damage = (".json", None)
DAMAGES: dict[str, Damage] = {
    "a flipped bit": (".f32", flip_a_bit),
    "cut vectors": CUT_SHORT,
    "no vectors": LOST_VECTORS,
    "no keys": (".keys", None),
    "other keys": (".keys", lambda content: b"\0" * len(content)),
    "no manifest": LOST_MANIFEST,
    "a cut manifest": (".json", lambda content: content[:-3]),
    "another manifest": (".json", add_a_field),
    "no text": (".json", lambda content: content[:-3] + b"\xff" + content[-2:]),
}


def spoil(shard: Shard, damage: Damage) -> None:
    suffix, change = damage
    path = shard.manifest_path.with_suffix(suffix)
    if change:
        path.write_bytes(change(path.read_bytes()))
    else:
        path.unlink()


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_only_the_texts_of_a_damaged_shard_are_encoded_again(
    damage, same_process, corpus, store, caplog, tmp_path
):
    first = store.plan(CountingEncoder(), corpus).missing[1]
    before = encode(store, corpus)
    undisturbed = files_below(tmp_path / "vectors")
    shard = next(s for s in before.shards if s.manifest_path.stem == first.name)
    spoil(shard, damage)
    if not same_process:
        store = VectorStore(tmp_path / "vectors")
    encoder = CountingEncoder()
    plan = store.plan(encoder, corpus)
    assert (shard.manifest_path.name in caplog.text) == (damage != LOST_MANIFEST)
    vectors = store.documents(encoder, corpus, plan)
    assert encoder.documents == corpus.texts.to_pylist()[4:8]
    assert np.array_equal(everything(vectors), directly(corpus))
    assert files_below(tmp_path / "vectors") == undisturbed


def test_a_file_truncated_while_it_is_read_is_an_error(corpus, store):
    vectors = encode(store, corpus)
    spoil(vectors.shards[2], CUT_SHORT)
    with pytest.raises(BenchError, match="cut short"):
        list(vectors.tiles(100))


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "disk", "64k") as folder:
        yield folder


def test_a_full_disk_keeps_finished_shards_and_encoding_continues_once_there_is_space(
    small_disk, tmp_path
):
    corpus = corpus_of(numbered(40), tmp_path / "corpus")
    store, encoder = VectorStore(small_disk / "vectors"), CountingEncoder()
    with pytest.raises(OSError, match="No space left") as error:
        encode(store, corpus, encoder)
    assert Path(error.value.filename).is_relative_to(small_disk)
    kept = 40 - store.plan(CountingEncoder(), corpus).missing_rows
    assert 0 < kept < 40
    del store
    enlarge(small_disk, "8m")
    again = CountingEncoder()
    vectors = encode(VectorStore(small_disk / "vectors"), corpus, again)
    assert len(again.documents) == 40 - kept
    assert np.array_equal(everything(vectors), directly(corpus))
    encode(VectorStore(tmp_path / "undisturbed"), corpus)
    assert files_below(small_disk / "vectors") == files_below(tmp_path / "undisturbed")


class Launching(CountingEncoder):
    """Works ahead, as a GPU does: launched shards are computed when they are called."""

    def __init__(self, in_flight: int) -> None:
        super().__init__()
        self.in_flight = in_flight
        self.events: list[tuple[str, int]] = []

    def prepare_documents(self, titles, texts):
        if not self.in_flight:
            return super().prepare_documents(titles, texts)
        return Launched(self, titles, texts)


class Launched:
    def __init__(self, encoder, titles, texts) -> None:
        self.encoder, self.titles, self.texts = encoder, titles, texts
        self.first = int(texts[0].split()[-1])
        self.in_flight = encoder.in_flight

    def launch(self):
        self.encoder.events.append(("launch", self.first))

    def __call__(self, advance=None):
        self.encoder.events.append(("land", self.first))
        return self.encoder.encode_documents(self.titles, self.texts, advance)


class Stops(Launching):
    """Fails after some texts, as a damaged model or Ctrl-C would."""

    def __init__(self, after: int, error: BaseException, in_flight: int) -> None:
        super().__init__(in_flight)
        self._after, self._error = after, error

    def encode_documents(self, titles, texts, advance=None):
        if len(self.documents) + len(texts) > self._after:
            raise self._error
        return super().encode_documents(titles, texts, advance)


@pytest.mark.parametrize("error", [BenchError("NaN"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("in_flight", [0, 3])
def test_an_error_of_the_encoder_leaves_finished_shards_no_lock_and_no_thread(
    error, in_flight, corpus, store, tmp_path
):
    before = set(threading.enumerate())
    with pytest.raises(type(error)):
        encode(store, corpus, Stops(8, error, in_flight))
    assert set(threading.enumerate()) == before
    names = {Path(name).suffix for name in files_below(tmp_path / "vectors")}
    assert names == {".corpus", ".f32", ".json", ".keys"}
    assert store.plan(CountingEncoder(), corpus).missing_rows == 2


@pytest.mark.parametrize("in_flight", [1, 2, 3, 9])
def test_shards_are_launched_ahead_and_kept_in_order(in_flight, store, tmp_path):
    corpus = corpus_of(numbered(18), tmp_path / "corpus")
    encode(VectorStore(tmp_path / "plain"), corpus)
    encoder = Launching(in_flight)
    vectors = encode(store, corpus, encoder)
    assert np.array_equal(everything(vectors), directly(corpus))
    assert files_below(tmp_path / "vectors") == files_below(tmp_path / "plain")
    shards = [0, 4, 8, 12, 16]
    for event in ("launch", "land"):
        assert [first for what, first in encoder.events if what == event] == shards
    ahead = [
        sum(what == "launch" for what, _ in encoder.events[:place])
        - sum(what == "land" for what, _ in encoder.events[:place])
        for place, (what, _) in enumerate(encoder.events)
        if what == "land"
    ]
    most = min(in_flight, 5)
    assert ahead == [most] * (5 - most + 1) + list(range(most - 1, 0, -1))


WORK = """
    import sys, time
    from pathlib import Path
    from tests.support.stores import CountingEncoder, encode
    from bench.store import shards
    from bench.store.store import VectorStore
    from datasets_cfg.corpus import Corpus

    class SlowEncoder(CountingEncoder):
        def encode_documents(self, titles, texts, advance=None):
            time.sleep(float(sys.argv[3]))
            return super().encode_documents(titles, texts, advance)

    shards.SHARD_ROWS = 4
    encoder, corpus = SlowEncoder(), Corpus.open(Path(sys.argv[1]))
    print("ready", flush=True)
    vectors = encode(VectorStore(Path(sys.argv[2])), corpus, encoder)
    print(len(encoder.documents), vectors.encoded, len(vectors.positions))
"""


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]


def working(tmp_path: Path, folder: str, pause_s: float = 0.02) -> subprocess.Popen:
    command = python(WORK, tmp_path / "corpus", tmp_path / folder, pause_s)
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_encoding_killed_at_any_moment_continues_and_gives_the_same_bytes(tmp_path):
    corpus = corpus_of(numbered(40), tmp_path / "corpus")
    encode(VectorStore(tmp_path / "undisturbed"), corpus)
    moments, killed = random.Random(0), 0
    for _ in range(3):
        with working(tmp_path, "killed") as process:
            process.stdout.readline()
            time.sleep(moments.uniform(0.01, 0.12))
            process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
    assert killed
    encoder = CountingEncoder()
    vectors = encode(VectorStore(tmp_path / "killed"), corpus, encoder)
    assert files_below(tmp_path / "killed") == files_below(tmp_path / "undisturbed")
    assert np.array_equal(everything(vectors), directly(corpus))


@pytest.mark.slow
def test_a_waiting_process_encodes_what_a_dead_one_left(tmp_path):
    corpus = corpus_of(numbered(4), tmp_path / "corpus")
    with working(tmp_path, "vectors", pause_s=600) as other:
        wait_until(lambda: list(tmp_path.glob(f"vectors/*/{'?' * 32}.lock")), other)
        killer = threading.Timer(0.3, other.kill)
        killer.start()
        encoder, done = CountingEncoder(), []
        store = VectorStore(tmp_path / "vectors")
        vectors = store.documents(encoder, corpus, store.plan(encoder, corpus), done.append)
        killer.join()
    assert len(encoder.documents) == vectors.encoded == sum(done) == 4
    assert np.array_equal(everything(vectors), directly(corpus))


def test_queries_are_encoded_once(store):
    encoder, texts = CountingEncoder(), ["one query", "another", "", "one query"]
    first = store.queries(encoder, texts)
    again = store.queries(encoder, texts)
    assert encoder.queries == texts[:3]
    expected = HashingEncoder(RECIPE).encode_queries(texts)
    assert first.tobytes() == again.tobytes() == expected.tobytes()
    assert store.queries(encoder, []).shape == (0, DIM)


def test_a_fact_is_computed_once_for_an_encoder_and_a_subject(store):
    calls = []

    def compute():
        calls.append(1)
        return {"warnings": ["é"], "value": len(calls)}

    first = store.remember(CountingEncoder().recipe, "preflight x", compute)
    assert store.remember(CountingEncoder().recipe, "preflight x", compute) == first
    assert store.remember(CountingEncoder().recipe, "preflight y", compute)["value"] == 2
    other = CountingEncoder(msgspec.structs.replace(RECIPE, dim=16))
    assert store.remember(other.recipe, "preflight x", compute)["value"] == 3


def test_a_damaged_fact_is_computed_again_and_never_becomes_another_one(store, tmp_path):
    fact = {"stop": [], "warnings": ["é"], "value": 0.25}

    def remember(value: object) -> dict[str, object]:
        return store.remember(CountingEncoder().recipe, "x", lambda: {**fact, "value": value})

    remember(1)
    (path,) = (tmp_path / "vectors").rglob("*.fact.json")
    whole = path.read_bytes()
    flipped = [
        whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        for place in range(0, len(whole), 5)
    ]
    for content in (b"", b'{"value": ', b"[1]", b'{"sha256": ' + b"[" * 100_000, *flipped):
        path.write_bytes(content)
        assert remember(2)["value"] == 2, content
        assert remember(3)["value"] == 2
        path.write_bytes(whole)
        assert remember(3)["value"] == 1
