import gzip
import hashlib
import io
import zipfile

import msgspec
import pytest

from datasets_cfg import locate
from datasets_cfg.catalogue import Archive, Facts, facts_for
from datasets_cfg.locate import archive_path, cached_folder, find_files
from foundation.errors import BenchError

FILES = {
    "tiny/corpus.jsonl": b'{"_id": "d", "text": "t"}\n',
    "tiny/queries.jsonl": b'{"_id": "q", "text": "t"}\n',
    "tiny/qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq\td\t1\n",
}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setattr(locate, "FIRST_WAIT_S", 0.0)


@pytest.fixture
def tiny(file_server) -> Facts:
    """A collection on the server, in a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    file_server.files["tiny.zip"] = buffer.getvalue()
    md5 = hashlib.md5(buffer.getvalue()).hexdigest()
    archive = Archive(file_server.url("tiny.zip"), md5, len(buffer.getvalue()), folder="tiny")
    return Facts("set/tiny", "beir", archives=(archive,))


@pytest.mark.parametrize("place", ["set/tiny", "tiny", "."])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_given_folder_is_found_in_three_places(place, compressed, tiny, tmp_path):
    folder = tmp_path / "data" / place
    folder.mkdir(parents=True)
    content = FILES["tiny/corpus.jsonl"]
    name = "corpus.jsonl.gz" if compressed else "corpus.jsonl"
    (folder / name).write_bytes(gzip.compress(content) if compressed else content)
    assert find_files(tiny, tmp_path / "data", tmp_path / "cache", fetch=False) == folder


def test_the_given_folder_goes_before_the_environment_and_that_before_the_cache(
    tiny, tmp_path, monkeypatch
):
    cache = tmp_path / "cache"
    given, environment = tmp_path / "given", tmp_path / "environment"
    for root in (given, environment, cache / "data"):
        (root / "set" / "tiny").mkdir(parents=True)
        (root / "set" / "tiny" / "corpus.jsonl").touch()
    monkeypatch.setenv("BENCH_DATA", str(environment))
    assert find_files(tiny, given, cache) == given / "set/tiny"
    assert find_files(tiny, None, cache) == environment / "set/tiny"
    monkeypatch.delenv("BENCH_DATA")
    assert find_files(tiny, None, cache) == cached_folder(tiny, cache)


def test_a_missing_collection_is_downloaded_once(tiny, tmp_path, file_server):
    folder = find_files(tiny, None, tmp_path)
    assert find_files(tiny, None, tmp_path) == folder
    unpacked = [path for path in folder.rglob("*.*") if "provenance" not in path.name]
    found = {f"tiny/{path.relative_to(folder)}": path for path in unpacked}
    assert {name: path.read_bytes() for name, path in found.items()} == FILES
    assert len(file_server.requests) == 1


def test_plain_files_join_what_an_archive_gave(tiny, tmp_path, file_server):
    file_server.files["more.tsv.gz"] = gzip.compress(b"1\tone\n")
    more = Archive(file_server.url("more.tsv.gz"))
    facts = msgspec.structs.replace(tiny, archives=(*tiny.archives, more))
    find_files(tiny, None, tmp_path)
    folder = find_files(facts, None, tmp_path)
    assert (folder / "more.tsv.gz").is_file()
    assert (folder / "corpus.jsonl").is_file()
    assert len(file_server.requests) == 2


def test_the_title_track_is_not_found_without_the_titles(tmp_path):
    folder = tmp_path / "msmarco"
    folder.mkdir()
    (folder / "collection.tsv").touch()
    assert find_files(facts_for("msmarco/dev"), tmp_path, tmp_path / "cache", False) == folder
    with pytest.raises(BenchError, match="downloads are off"):
        find_files(facts_for("msmarco-title/dev"), tmp_path, tmp_path / "cache", False)
    (folder / "para.title.txt").touch()
    found = find_files(facts_for("msmarco-title/dev"), tmp_path, tmp_path / "cache", False)
    assert found == folder


def test_beir_msmarco_is_not_read_as_the_passage_ranking_files(tmp_path):
    (tmp_path / "msmarco").mkdir()
    (tmp_path / "msmarco" / "corpus.jsonl").touch()
    assert find_files(facts_for("beir/msmarco"), tmp_path, tmp_path / "cache", False).is_dir()
    with pytest.raises(BenchError):
        find_files(facts_for("msmarco/dev"), tmp_path, tmp_path / "cache", False)


def test_an_archive_that_was_copied_here_is_compared_with_its_checksum(tiny, tmp_path, file_server):
    copied = archive_path(tiny, tiny.archives[0], tmp_path)
    copied.parent.mkdir(parents=True)
    copied.write_bytes(file_server.files["tiny.zip"] + b"\0")
    with pytest.raises(BenchError, match=rf"{tiny.archives[0].md5}; the file was removed"):
        find_files(tiny, None, tmp_path)
    assert not cached_folder(tiny, tmp_path).exists()


def test_judgements_alone_are_found_without_documents(tmp_path):
    folder = tmp_path / "msmarco"
    folder.mkdir()
    for name in ("queries.dl19.judged.tsv", "2019qrels-pass.txt"):
        (folder / name).touch()
    facts = facts_for("msmarco/dl19")
    assert find_files(facts, tmp_path, tmp_path / "cache", False, with_corpus=False) == folder
    with pytest.raises(BenchError, match=r"collection\.tsv from .* downloads are off"):
        find_files(facts, tmp_path, tmp_path / "cache", False)


def test_reading_only_judgements_downloads_no_documents(tmp_path, file_server):
    names = ("collectionandqueries.tar.gz", "queries.dl19.tsv.gz", "qrels.dl19.txt")
    files = [("collection.tsv",), (), ()]
    archives = tuple(
        Archive(file_server.url(name), files=inside)
        for name, inside in zip(names, files, strict=True)
    )
    file_server.files["queries.dl19.tsv.gz"] = gzip.compress(b"7\tq\n")
    file_server.files["qrels.dl19.txt"] = b"7 0 1 1\n"
    facts = Facts("ms/dl19", "msmarco", split="dl19", archives=archives)
    folder = find_files(facts, None, tmp_path, with_corpus=False)
    assert len(file_server.requests) == 2
    assert find_files(facts, None, tmp_path, with_corpus=False) == folder
    assert len(file_server.requests) == 2


def test_offline_the_error_names_the_address_and_the_two_ways_on(tiny, tmp_path, file_server):
    with pytest.raises(BenchError, match=r"set/tiny: tiny\.zip from http.*/tiny\.zip") as caught:
        find_files(tiny, None, tmp_path, fetch=False)
    assert "--data-dir DIR" in caught.value.hint
    assert "bench fetch set/tiny" in caught.value.hint
    assert file_server.requests == []


def test_a_licensed_collection_says_how_to_obtain_it_and_where_to_put_it(tmp_path):
    facts = facts_for("beir/robust04")
    with pytest.raises(BenchError, match="beir/robust04 needs a licence") as caught:
        find_files(facts, tmp_path, tmp_path / "cache")
    assert "https://trec.nist.gov/data/cd45" in caught.value.hint
    assert str(tmp_path / "beir" / "robust04") in caught.value.hint
    assert f"--data-dir {tmp_path}" in caught.value.hint
