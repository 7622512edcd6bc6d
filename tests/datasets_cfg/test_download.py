"""The places of a collection's files, downloads from a real server, and archives."""

import gzip
import hashlib
import io
import random
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from datasets_cfg import download as downloads
from datasets_cfg.catalogue import Archive, Metadata, metadata_for
from datasets_cfg.download import (
    ATTEMPTS,
    archive_path,
    cached_folder,
    download,
    find_files,
    unpack,
)
from foundation.errors import BenchError

FILES = {
    "tiny/corpus.jsonl": b'{"_id": "d", "text": "t"}\n',
    "tiny/queries.jsonl": b'{"_id": "q", "text": "t"}\n',
    "tiny/qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq\td\t1\n",
}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setattr(downloads, "FIRST_WAIT_S", 0.0)


@pytest.fixture
def tiny(file_server) -> Metadata:
    """A collection on the server, in a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    file_server.files["tiny.zip"] = buffer.getvalue()
    md5 = hashlib.md5(buffer.getvalue()).hexdigest()
    archive = Archive(file_server.url("tiny.zip"), md5, folder="tiny")
    return Metadata("set/tiny", "beir", archives=(archive,))


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
    metadata = msgspec.structs.replace(tiny, archives=(*tiny.archives, more))
    find_files(tiny, None, tmp_path)
    folder = find_files(metadata, None, tmp_path)
    assert (folder / "more.tsv.gz").is_file()
    assert (folder / "corpus.jsonl").is_file()
    assert len(file_server.requests) == 2


def test_the_title_track_is_not_found_without_the_titles(tmp_path):
    folder = tmp_path / "msmarco"
    folder.mkdir()
    (folder / "collection.tsv").touch()
    assert find_files(metadata_for("msmarco/dev"), tmp_path, tmp_path / "cache", False) == folder
    with pytest.raises(BenchError, match="downloads are off"):
        find_files(metadata_for("msmarco-title/dev"), tmp_path, tmp_path / "cache", False)
    (folder / "para.title.txt").touch()
    found = find_files(metadata_for("msmarco-title/dev"), tmp_path, tmp_path / "cache", False)
    assert found == folder


def test_beir_msmarco_is_not_read_as_the_passage_ranking_files(tmp_path):
    (tmp_path / "msmarco").mkdir()
    (tmp_path / "msmarco" / "corpus.jsonl").touch()
    assert find_files(metadata_for("beir/msmarco"), tmp_path, tmp_path / "cache", False).is_dir()
    with pytest.raises(BenchError):
        find_files(metadata_for("msmarco/dev"), tmp_path, tmp_path / "cache", False)


def test_an_archive_that_was_copied_here_is_compared_with_its_checksum(tiny, tmp_path, file_server):
    copied = archive_path(tiny, tiny.archives[0], tmp_path)
    copied.parent.mkdir(parents=True)
    copied.write_bytes(file_server.files["tiny.zip"] + b"\0")
    with pytest.raises(BenchError, match=rf"{tiny.archives[0].md5}; the file was removed"):
        find_files(tiny, None, tmp_path)
    assert not cached_folder(tiny, tmp_path).exists()


def test_reading_only_judgements_downloads_no_documents(tmp_path, file_server):
    names = ("collectionandqueries.tar.gz", "queries.dl19.tsv.gz", "qrels.dl19.txt")
    files = [("collection.tsv",), (), ()]
    archives = tuple(
        Archive(file_server.url(name), files=inside)
        for name, inside in zip(names, files, strict=True)
    )
    file_server.files["queries.dl19.tsv.gz"] = gzip.compress(b"7\tq\n")
    file_server.files["qrels.dl19.txt"] = b"7 0 1 1\n"
    metadata = Metadata("ms/dl19", "msmarco", split="dl19", archives=archives)
    folder = find_files(metadata, None, tmp_path, with_corpus=False)
    assert len(file_server.requests) == 2
    assert find_files(metadata, None, tmp_path, with_corpus=False) == folder
    assert len(file_server.requests) == 2


def test_offline_the_error_names_the_address_and_the_two_ways_on(tiny, tmp_path, file_server):
    with pytest.raises(BenchError, match=r"set/tiny: tiny\.zip from http.*/tiny\.zip") as caught:
        find_files(tiny, None, tmp_path, fetch=False)
    assert "--data-dir DIR" in caught.value.hint
    assert "bench fetch set/tiny" in caught.value.hint
    assert file_server.requests == []


def test_a_licensed_collection_says_how_to_obtain_it_and_where_to_put_it(tmp_path):
    metadata = metadata_for("beir/robust04")
    with pytest.raises(BenchError, match="beir/robust04 needs a licence") as caught:
        find_files(metadata, tmp_path, tmp_path / "cache")
    assert "https://trec.nist.gov/data/cd45" in caught.value.hint
    assert str(tmp_path / "beir" / "robust04") in caught.value.hint
    assert f"--data-dir {tmp_path}" in caught.value.hint


# Downloads and archives

CONTENT = random.Random(0).randbytes(3_000_001)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.mark.parametrize(
    ("part", "ranges", "asked"),
    [
        (CONTENT[:2_000_000], True, ["bytes=1999999-"]),
        (CONTENT, True, ["bytes=3000000-"]),  # it was whole already
        (CONTENT + b"of another release", True, ["bytes=3000018-", None]),
        (b"x" * 1000, False, ["bytes=999-"]),  # the server makes it start anew
    ],
)
def test_a_partial_file_is_resumed_with_a_range_request_or_discarded(
    part, ranges, asked, file_server, tmp_path
):
    file_server.files["a.zip"] = CONTENT
    file_server.ranges = ranges
    (tmp_path / "a.zip.part").write_bytes(part)
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT
    assert file_server.requests == asked


def test_a_connection_that_keeps_breaking_keeps_the_partial_file(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    file_server.cuts = [1000] * ATTEMPTS
    with pytest.raises(BenchError, match=r"broke 5 times: received 4,996 of 3,000,001") as caught:
        download(file_server.url("a.zip"), tmp_path / "a.zip", MD5)
    assert "4,996 bytes" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip.part"]
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT


def test_requests_to_a_busy_server_are_repeated(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    file_server.failures = [503, 429]
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT


def test_a_wrong_checksum_removes_the_file_and_names_both_sums(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    with pytest.raises(BenchError) as caught:
        download(file_server.url("a.zip"), tmp_path / "a.zip", "0" * 32)
    assert MD5 in str(caught.value)
    assert "0" * 32 in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_server_lacks_is_refused_at_once(file_server, tmp_path):
    with pytest.raises(BenchError, match=r"/gone.zip: the server answers 404"):
        download(file_server.url("gone.zip"), tmp_path / "gone.zip")
    assert len(file_server.requests) == 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "data:,x"])
def test_a_server_that_sends_on_to_what_is_not_http_is_not_followed(target, file_server, tmp_path):
    file_server.redirects["a.zip"] = target
    with pytest.raises(BenchError) as caught:
        download(file_server.url("a.zip"), tmp_path / "a.zip")
    assert target in str(caught.value)
    assert list(tmp_path.iterdir()) == []


MEMBERS = {"set/corpus.jsonl": b"c" * 5000, "set/qrels/test.tsv": b"q", "other/x": b"x"}


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        link = zipfile.ZipInfo("other/link")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"set/link{kind!r}")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(params=["a.zip", "a.tar.gz"])
def make(request, tmp_path):
    """Makes an archive of one of the two kinds, which also holds links."""
    maker = make_zip if request.param == "a.zip" else make_tar
    return lambda files: maker(tmp_path / request.param, files)


def content_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_one_folder_of_an_archive_becomes_the_folder_without_links(make, tmp_path):
    unpack(make(MEMBERS), tmp_path / "data" / "set", inside="set")
    expected = {"set/corpus.jsonl": b"c" * 5000, "set/qrels/test.tsv": b"q"}
    assert content_of(tmp_path / "data") == expected


def test_wanted_files_join_those_that_are_there(make, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mine").write_bytes(b"m")
    unpack(make(MEMBERS), folder, inside="set", wanted=["qrels/test.tsv"])
    assert content_of(folder) == {"mine": b"m", "qrels/test.tsv": b"q"}


@pytest.mark.parametrize("escape", ["../evil", "/tmp/evil", "set/../../evil"])
def test_no_member_leaves_the_folder(make, escape, tmp_path):
    archive = make({**MEMBERS, escape: b"evil"})
    with suppress(BenchError):
        unpack(archive, tmp_path / "deep" / "data")
    outside = {path for path in tmp_path.rglob("*") if path.is_file()} - {archive}
    assert all(path.is_relative_to(tmp_path / "deep" / "data") for path in outside)
    assert not Path("/tmp/evil").exists()


def test_an_archive_that_was_cut_leaves_nothing(make, tmp_path):
    archive = make(MEMBERS)
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(BenchError, match="cannot be unpacked") as caught:
        unpack(archive, tmp_path / "data")
    assert f"rm {archive}" in caught.value.hint
    assert list(tmp_path.iterdir()) == [archive]


def test_a_member_missing_from_an_archive_is_named(make, tmp_path):
    archive = make(MEMBERS)
    with pytest.raises(BenchError, match=r"has no titles\.txt in its folder 'set'"):
        unpack(archive, tmp_path / "data", "set", ["corpus.jsonl", "titles.txt"])
    with pytest.raises(BenchError, match="has no files in its folder 'elsewhere'"):
        unpack(archive, tmp_path / "data", "elsewhere")
    assert not (tmp_path / "data").exists()
