import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from datasets_cfg import corpus as corpus_writer
from datasets_cfg.corpus import Corpus, DamagedCorpusError
from datasets_cfg.readers.reader import Document
from foundation.errors import BenchError
from tests.support.examples import with_examples
from tests.support.processes import HANGS_S

# Text that UTF-8 can carry: everything but lone surrogates.
unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
documents_strategy = st.lists(
    st.builds(Document, unicode_text, unicode_text, unicode_text),
    min_size=1,
    max_size=30,
    unique_by=lambda document: document.id,
)
quick = with_examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])


def numbered(count: int) -> list[Document]:
    return [Document(f"d{row}", f"title {row}", f"text {row}") for row in range(count)]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three documents per record batch, so that tiny corpora have several chunks."""
    monkeypatch.setattr(corpus_writer, "BATCH_DOCUMENTS", 3)


@quick
@given(documents=documents_strategy, asked=st.lists(unicode_text, max_size=10), seed=st.integers(0))
def test_any_unicode_documents_come_back_and_are_found_and_ranked_by_their_ids(
    documents, asked, seed, tmp_path, small_batches
):
    corpus = Corpus.build(documents, tmp_path / "corpus")

    columns = (corpus.ids, corpus.titles, corpus.texts)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    assert [Document(*row) for row in rows] == documents
    assert all(column.type == pa.large_string() for column in columns)
    by_bytes = sorted(range(len(documents)), key=lambda row: documents[row].id.encode())
    assert np.argsort(corpus.tie_rank).tolist() == by_bytes
    assert sorted(corpus.tie_rank.tolist()) == list(range(len(documents)))
    wanted = [*asked, *[documents[seed % len(documents)].id] * 2]
    row_of = {document.id: row for row, document in enumerate(documents)}
    found = corpus.rows_of(wanted)
    assert found.dtype == np.int64
    assert found.tolist() == [row_of.get(id_, -1) for id_ in wanted]
    known = found[found >= 0]
    assert corpus.texts_at(known) == [documents[row].text for row in known]


@pytest.mark.parametrize("row", [-1, 3])
def test_texts_at_refuses_a_row_outside_the_corpus(row, tmp_path):
    corpus = Corpus.build(numbered(3), tmp_path / "corpus")

    with pytest.raises(IndexError, match=r"0\.\.2"):
        corpus.texts_at(np.array([0, row]))


def test_the_hash_does_not_depend_on_record_batches(tmp_path, monkeypatch):
    whole = Corpus.build(numbered(10), tmp_path / "whole")
    monkeypatch.setattr(corpus_writer, "BATCH_BYTES", 1)
    split = Corpus.build(numbered(10), tmp_path / "split")

    assert split.ids.num_chunks == 10
    assert whole.ids.num_chunks == 1
    assert split.sha256 == whole.sha256


def test_the_hash_is_sha256_of_length_prefixed_fields(tmp_path):
    corpus = Corpus.build([Document("1", "é", "")], tmp_path / "corpus")

    expected = b"\x01" + bytes(7) + b"1" + b"\x02" + bytes(7) + "é".encode() + bytes(8)
    assert corpus.sha256 == hashlib.sha256(expected).hexdigest()


def test_a_duplicate_id_is_named_with_both_places(tmp_path, small_batches):
    documents = [*numbered(8), numbered(8)[1], Document("d2", "", "again")]

    with pytest.raises(BenchError, match="'d2' occurs twice: documents 3 and 10"):
        Corpus.build(documents, tmp_path / "corpus")
    assert list(tmp_path.iterdir()) == []


def test_building_again_replaces_the_corpus_while_an_open_one_stays_readable(tmp_path):
    folder = tmp_path / "corpus"
    old = Corpus.build(numbered(3), folder)
    new = Corpus.build(numbered(5), folder)

    assert (len(old), len(new), len(Corpus.open(folder))) == (3, 5, 5)
    assert old.texts.to_pylist() == ["text 0", "text 1", "text 2"]
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


@pytest.mark.slow
def test_many_processes_may_build_the_same_corpus(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from datasets_cfg.corpus import Corpus\n"
        "from datasets_cfg.readers.reader import Document\n"
        "for _ in range(8):\n"
        "    Corpus.build([Document('1', '', 'text')], Path(sys.argv[1]))\n"
    )
    folder = tmp_path / "corpus"
    command = [sys.executable, "-c", program, str(folder)]
    children = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for _ in range(3)]

    assert [child.wait(timeout=HANGS_S) for child in children] == [0, 0, 0]
    assert Corpus.open(folder).texts.to_pylist() == ["text"]
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


@pytest.mark.parametrize("name", ["documents.arrow", "tie_rank.npy", "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_damaged_corpus_is_refused(name, damage, tmp_path):
    folder = tmp_path / "corpus"
    Corpus.build(numbered(3), folder)
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if damage != "missing":
        (folder / name).write_bytes(content[: len(content) // 2] if damage == "cut" else b"")

    with pytest.raises(BenchError, match="cannot be used"):
        Corpus.open(folder)


def test_a_corpus_of_another_format_version_is_refused(tmp_path):
    Corpus.build(numbered(1), tmp_path / "corpus")
    manifest = tmp_path / "corpus" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 2', '"schema_version": 9'))

    with pytest.raises(BenchError, match="version 9"):
        Corpus.open(tmp_path / "corpus")


@pytest.mark.parametrize("damage", [(b"text 4", b"text 5"), (b"d6", b"d2")])
def test_a_large_corpus_is_checked_when_a_document_is_first_asked_for(
    damage, tmp_path, monkeypatch
):
    folder = tmp_path / "corpus"
    Corpus.build(numbered(10), folder)
    documents = (folder / "documents.arrow").read_bytes()
    (folder / "documents.arrow").write_bytes(documents.replace(*damage))
    monkeypatch.setattr(corpus_writer, "CHECKED_AT_OPEN", 0)
    corpus = Corpus.open(folder)

    for read in (
        lambda: corpus.rows_of(["d4"]),
        lambda: corpus.texts_at(np.array([0])),
        lambda: next(corpus.iter_batches(1)),
    ):
        with pytest.raises(DamagedCorpusError, match=r"documents\.arrow has a different checksum"):
            read()
    with pytest.raises(DamagedCorpusError, match=r"cannot read .*manifest\.json"):
        Corpus.open(folder)  # what is damaged is not met a second time


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path):
    source = tmp_path / "corpus.jsonl"
    source.write_text("old")

    def documents() -> Iterator[Document]:
        yield from numbered(3)
        source.write_text("newer")

    with pytest.raises(BenchError, match="changed while it was read"):
        Corpus.build(documents(), tmp_path / "corpus", [source])
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.slow
def test_reading_in_batches_keeps_no_pages_of_the_file(tmp_path):
    text = "x" * 100_000
    documents = (Document(str(row), "", f"{row} {text}") for row in range(1_000))
    corpus = Corpus.build(documents, tmp_path / "corpus")
    most = 0
    for start, _, texts in corpus.iter_batches(50):
        assert texts[0].startswith(f"{start} x")
        most = max(most, mapped_bytes(tmp_path / "corpus" / "documents.arrow"))
    assert most < 20 * len(text)
    assert corpus.texts[999].as_py() == f"999 {text}"  # what was released can be read again


def mapped_bytes(path: Path) -> int:
    """Resident bytes of this process's maps of a file."""
    found = 0
    for region in re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text()):
        if str(path) in region.partition("\n")[0]:
            found += 1024 * int(re.search(r"Rss:\s+(\d+)", region)[1])
    return found
