"""Vectors on disk: encoded once, found by content, never half written."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import store as store_module
from bench.errors import BenchError
from bench.store import Shard, StoredVectors, VectorStore
from datasets_cfg.corpus import Corpus, Document
from retrievers.hashing import HashingEncoder
from retrievers.recipe import Prompts, Recipe

ROWS = 4  # of a shard, in these tests
DIM = 8
ROOT = Path(__file__).resolve().parents[2]
RECIPE = Recipe(
    model="words",
    kind="hashing",
    dim=DIM,
    normalize=True,
    title_join="space",
    max_query_tokens=32,
    max_document_tokens=32,
)
texts_of_documents = st.lists(st.tuples(st.text(max_size=8), st.text(max_size=12)), min_size=1)


class CountingEncoder(HashingEncoder):
    """Keeps the texts of every call."""

    def __init__(self, recipe: Recipe = RECIPE) -> None:
        super().__init__(recipe)
        self.documents: list[str] = []
        self.queries: list[str] = []

    def encode_documents(self, titles, texts, advance=None):
        self.documents += texts
        return super().encode_documents(titles, texts, advance)

    def encode_queries(self, texts, advance=None):
        self.queries += texts
        return super().encode_queries(texts, advance)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(store_module, "SHARD_ROWS", ROWS)


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(numbered(10), tmp_path / "corpus")


@pytest.fixture
def store(tmp_path):
    return VectorStore(tmp_path / "vectors")


def numbered(count: int, first: int = 0) -> list[tuple[str, str]]:
    return [(f"title {n}", f"text of document {n}") for n in range(first, first + count)]


def corpus_of(documents: list[tuple[str, str]], folder: Path) -> Corpus:
    named = [Document(str(row), title, text) for row, (title, text) in enumerate(documents)]
    return Corpus.build(named, folder)


def encode(store: VectorStore, corpus: Corpus, encoder=None) -> StoredVectors:
    encoder = encoder or CountingEncoder()
    return store.documents(encoder, corpus, store.plan(encoder, corpus))


def everything(vectors: StoredVectors) -> np.ndarray:
    return vectors.rows(np.arange(vectors.shape[0]))


def directly(corpus: Corpus) -> np.ndarray:
    titles, texts = corpus.titles.to_pylist(), corpus.texts.to_pylist()
    return HashingEncoder(RECIPE).encode_documents(titles, texts)


def files_below(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@settings(deadline=None, max_examples=40)
@given(documents=texts_of_documents, shard_rows=st.integers(1, 7))
def test_shards_cut_the_corpus_into_consecutive_rows(documents, shard_rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    corpus = corpus_of(documents, folder / "corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "SHARD_ROWS", shard_rows)
        plan = VectorStore(folder / "vectors").plan(CountingEncoder(), corpus)
    shards = plan.vectors.shards
    assert [shard.start for shard in shards] == list(range(0, len(documents), shard_rows))
    assert all(shard.rows == shard_rows for shard in shards[:-1])
    assert sum(shard.rows for shard in shards) == plan.missing_rows == len(documents)
    assert plan.vectors.shape == (len(documents), DIM)


@settings(deadline=None, max_examples=40)
@given(documents=texts_of_documents, shard_rows=st.integers(1, 7), tile_rows=st.integers(1, 30))
def test_stored_vectors_are_those_of_the_encoder(
    documents, shard_rows, tile_rows, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("stored")
    corpus = corpus_of(documents, folder / "corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "SHARD_ROWS", shard_rows)
        vectors = encode(VectorStore(folder / "vectors"), corpus)
        tiles = list(vectors.tiles(tile_rows))
    expected = directly(corpus)
    assert everything(vectors).tobytes() == expected.tobytes()
    assert np.concatenate([tile for _, tile in tiles]).tobytes() == expected.tobytes()
    for start, tile in tiles:
        assert tile.dtype == np.float32
        assert np.array_equal(tile, expected[start : start + len(tile)])
        assert len(tile) <= max(tile_rows, shard_rows)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(st.integers(0, 9)).map(sorted))
def test_rows_are_those_of_numpy_indexing(wanted, corpus, store):
    vectors = encode(store, corpus)
    asked = np.array(wanted, dtype=np.int64)
    assert np.array_equal(vectors.rows(asked), directly(corpus)[asked])


def test_a_second_run_encodes_nothing(corpus, store):
    encode(store, corpus)
    again = CountingEncoder()
    assert store.plan(again, corpus).missing == ()
    encode(store, corpus, again)
    assert again.documents == []


def test_progress_counts_the_documents_that_are_encoded(corpus, store):
    encoder, done = CountingEncoder(), []
    store.documents(encoder, corpus, store.plan(encoder, corpus), done.append)
    assert sum(done) == 10


def test_a_shard_shared_with_another_corpus_is_not_encoded_again(corpus, store, tmp_path):
    encode(store, corpus)
    shared = numbered(8)
    other = corpus_of([*shared, *numbered(3, first=90)], tmp_path / "other")
    encoder = CountingEncoder()
    vectors = encode(store, other, encoder)
    assert encoder.documents == [text for _, text in numbered(3, first=90)]
    assert np.array_equal(everything(vectors), directly(other))


def test_where_a_title_ends_is_part_of_a_shards_name(store, tmp_path):
    names = set()
    pairs = [("a b", "c"), ("a", "b c"), ("", "a b c"), ("a b c", "")]
    for row, pair in enumerate(pairs):
        plan = store.plan(CountingEncoder(), corpus_of([pair], tmp_path / str(row)))
        names.add(plan.vectors.shards[0].path)
    assert len(names) == len(pairs)


def test_a_text_as_query_and_as_document_has_two_files(store, tmp_path):
    encoder = CountingEncoder()
    encode(store, corpus_of([("", "same")], tmp_path / "corpus"), encoder)
    store.queries(encoder, ["same"])
    store.queries(encoder, ["", "same"])
    assert len(list((tmp_path / "vectors").rglob("*.f32"))) == 3


@pytest.mark.parametrize(
    "change",
    [{"dim": 16}, {"max_document_tokens": 3}, {"prompts": Prompts(document="passage: ")}],
    ids=lambda change: next(iter(change)),
)
def test_another_recipe_never_reads_these_vectors(change, corpus, store):
    mine = store.plan(CountingEncoder(), corpus).vectors.shards
    other = CountingEncoder(msgspec.structs.replace(RECIPE, **change))
    theirs = store.plan(other, corpus).vectors.shards
    assert not {shard.path for shard in mine} & {shard.path for shard in theirs}


def flip_a_bit(shard: Shard) -> None:
    content = bytearray(shard.path.read_bytes())
    content[5] ^= 1
    shard.path.write_bytes(content)


def cut_short(shard: Shard) -> None:
    shard.path.write_bytes(shard.path.read_bytes()[:-4])


def lose_vectors(shard: Shard) -> None:
    shard.path.unlink()


def lose_manifest(shard: Shard) -> None:
    shard.manifest_path.unlink()


def spoil_manifest(shard: Shard) -> None:
    shard.manifest_path.write_bytes(shard.manifest_path.read_bytes()[:-3])


def add_to_manifest(shard: Shard) -> None:
    shard.manifest_path.write_text('{"rows": 4, "dim": 8, "sha256": "", "more": 1}')


def spoil_manifests_text(shard: Shard) -> None:
    content = shard.manifest_path.read_bytes()
    shard.manifest_path.write_bytes(content[:-3] + b"\xff" + content[-2:])


DAMAGES = [
    flip_a_bit,
    cut_short,
    lose_vectors,
    lose_manifest,
    spoil_manifest,
    add_to_manifest,
    spoil_manifests_text,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_only_a_damaged_shard_is_encoded_again(damage, corpus, store, caplog):
    before = encode(store, corpus)
    damage(before.shards[1])
    encoder = CountingEncoder()
    plan = store.plan(encoder, corpus)
    assert plan.missing == (before.shards[1],)
    assert ("is damaged" in caplog.text) == (damage is not lose_manifest)
    vectors = store.documents(encoder, corpus, plan)
    assert encoder.documents == corpus.texts.to_pylist()[4:8]
    assert np.array_equal(everything(vectors), directly(corpus))


def test_a_file_cut_while_it_is_read_is_an_error(corpus, store):
    vectors = encode(store, corpus)
    cut_short(vectors.shards[2])
    with pytest.raises(BenchError, match="cut short"):
        list(vectors.tiles(100))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_finished_shards_and_nothing_half_written(
    code, corpus, store, tmp_path, monkeypatch
):
    real, calls = os.fsync, []

    def fails_at_the_fourth(handle):
        calls.append(handle)
        if len(calls) == 4:  # vectors of the second shard are kept, its manifest is not
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr("bench.atomic.os.fsync", fails_at_the_fourth)
    with pytest.raises(BenchError, match="no space left for 128 bytes") as error:
        encode(store, corpus)
    assert "--cache-dir" in error.value.hint
    assert sorted(Path(name).suffix for name in files_below(tmp_path / "vectors")) == [
        ".f32",
        ".f32",
        ".json",
    ]
    assert store.plan(CountingEncoder(), corpus).missing_rows == 6
    assert np.array_equal(everything(encode(store, corpus)), directly(corpus))


def test_another_failure_to_write_is_not_called_a_full_disk(corpus, store, monkeypatch):
    def fails(handle):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr("bench.atomic.os.fsync", fails)
    with pytest.raises(OSError, match="input/output error"):
        encode(store, corpus)


SLOW_WORK = """
    import sys, time
    from pathlib import Path
    import msgspec
    from bench import store as store_module
    from datasets_cfg.corpus import Corpus
    from retrievers.hashing import HashingEncoder
    from retrievers.recipe import Recipe

    class SlowEncoder(HashingEncoder):
        def encode_documents(self, titles, texts, advance=None):
            time.sleep(0.2)
            return super().encode_documents(titles, texts, advance)

    store_module.SHARD_ROWS = 4
    encoder = SlowEncoder(msgspec.json.decode(sys.argv[1], type=Recipe))
    store = store_module.VectorStore(Path(sys.argv[2]))
    corpus = Corpus.open(Path(sys.argv[3]))
    store.documents(encoder, corpus, store.plan(encoder, corpus))
"""


def test_killed_work_goes_on_and_ends_with_the_same_bytes(tmp_path):
    corpus = corpus_of(numbered(40), tmp_path / "corpus")
    encode(VectorStore(tmp_path / "undisturbed"), corpus)
    killed = tmp_path / "killed"
    recipe = msgspec.json.encode(RECIPE).decode()
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(SLOW_WORK),
        recipe,
        killed,
        tmp_path / "corpus",
    ]
    with subprocess.Popen(command, cwd=ROOT) as process:
        wait_for_a_shard(killed, process)
        process.send_signal(signal.SIGKILL)
    encoder = CountingEncoder()
    encode(VectorStore(killed), corpus, encoder)
    assert 0 < len(encoder.documents) < 40
    # A kill may leave a temporary file, whose name starts with a dot, and nothing else.
    left = {name: data for name, data in files_below(killed).items() if "/." not in name}
    assert left == files_below(tmp_path / "undisturbed")


def wait_for_a_shard(folder: Path, process: subprocess.Popen, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not any(folder.rglob("*.json")):
        assert process.poll() is None, "the work ended before it was killed"
        assert time.monotonic() < end, "no shard was written"
        time.sleep(0.01)


def test_queries_are_encoded_once(store):
    encoder, texts = CountingEncoder(), ["one query", "another", ""]
    first = store.queries(encoder, texts)
    again = store.queries(encoder, texts)
    assert encoder.queries == texts
    expected = HashingEncoder(RECIPE).encode_queries(texts)
    assert first.tobytes() == again.tobytes() == expected.tobytes()


def test_queries_in_another_order_are_other_queries(store):
    encoder = CountingEncoder()
    forth = store.queries(encoder, ["one", "two"])
    back = store.queries(encoder, ["two", "one"])
    assert np.array_equal(forth, back[::-1])


def test_no_query_gives_no_vector(store):
    assert store.queries(CountingEncoder(), []).shape == (0, DIM)


def test_a_corpus_of_one_document_has_one_short_shard(store, tmp_path):
    corpus = corpus_of([("", "alone")], tmp_path / "corpus")
    vectors = encode(store, corpus)
    assert vectors.shape == (1, DIM)
    assert np.array_equal(everything(vectors), directly(corpus))


def test_a_fact_is_computed_once_for_an_encoder_and_a_subject(store):
    calls = []

    def compute():
        calls.append(1)
        return {"warnings": ["é"], "value": len(calls)}

    first = store.remember(CountingEncoder(), "preflight x", compute)
    assert store.remember(CountingEncoder(), "preflight x", compute) == first
    assert store.remember(CountingEncoder(), "preflight y", compute)["value"] == 2
    other = CountingEncoder(msgspec.structs.replace(RECIPE, dim=16))
    assert store.remember(other, "preflight x", compute)["value"] == 3


@pytest.mark.parametrize("content", [b'{"value": ', b'{"value": "\xff"}', b"[1]"])
def test_a_damaged_fact_is_computed_again(content, store, tmp_path):
    store.remember(CountingEncoder(), "x", lambda: {"value": 1})
    (path,) = (tmp_path / "vectors").rglob("*.fact.json")
    path.write_bytes(content)
    assert store.remember(CountingEncoder(), "x", lambda: {"value": 2}) == {"value": 2}


def test_a_fact_is_not_taken_for_a_shards_manifest(store):
    encoder = CountingEncoder()
    store.remember(encoder, "x", lambda: {"rows": 1, "dim": DIM, "sha256": ""})
    assert store.queries(encoder, ["x"]).shape == (1, DIM)
