"""Downloads from a real server on the loopback interface, and archives onto disk."""

import hashlib
import io
import random
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from datasets_cfg import locate as module
from datasets_cfg.locate import ATTEMPTS, download, unpack
from foundation.errors import BenchError

CONTENT = random.Random(0).randbytes(3_000_001)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.0)


def test_a_download_has_the_bytes_of_the_server(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    target = download(file_server.url("a.zip"), tmp_path / "new" / "a.zip", MD5)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["a.zip"]


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


def test_an_interrupted_download_is_resumed(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    file_server.cuts = [1_000_000, 1_000_000]
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT
    assert file_server.requests == [None, "bytes=999999-", "bytes=1999998-"]


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


def test_a_file_that_moved_is_fetched_from_its_new_address(file_server, tmp_path):
    file_server.files["new.zip"] = CONTENT
    file_server.redirects["a.zip"] = file_server.url("new.zip")
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT


@pytest.mark.parametrize("target", ["file:///etc/passwd", "data:,x"])
def test_a_server_that_sends_on_to_what_is_not_http_is_not_followed(target, file_server, tmp_path):
    file_server.redirects["a.zip"] = target
    with pytest.raises(BenchError) as caught:
        download(file_server.url("a.zip"), tmp_path / "a.zip")
    assert target in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_named_with_the_bytes_needed(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    (tmp_path / "a.zip.part").symlink_to("/dev/full")  # every write fails with ENOSPC
    with pytest.raises(BenchError, match=r"a.zip.part: No space left") as caught:
        download(file_server.url("a.zip"), tmp_path / "a.zip", MD5)
    assert "free some space" in caught.value.hint


@pytest.mark.parametrize(("size", "most"), [(0, 5_000_000), (1_500_000, 3_000_000)])
def test_a_body_that_never_ends_stops_before_the_disk_is_full(
    size, most, file_server, tmp_path, monkeypatch
):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: mock.Mock(free=10_000_000))
    file_server.endless = True
    with pytest.raises(BenchError, match=f"/a.zip: the file has more than {most:,} bytes"):
        download(file_server.url("a.zip"), tmp_path / "a.zip", size=size)
    assert list(tmp_path.iterdir()) == []


def test_a_file_much_larger_than_published_is_not_downloaded(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    with pytest.raises(BenchError, match="more than 2,000 bytes"):
        download(file_server.url("a.zip"), tmp_path / "a.zip", size=1000)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_only_the_partial_file(file_server, tmp_path, monkeypatch):
    class Interrupted(module.tqdm):
        def update(self, n=1):
            raise KeyboardInterrupt

    file_server.files["a.zip"] = CONTENT
    monkeypatch.setattr(module, "tqdm", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        download(file_server.url("a.zip"), tmp_path / "a.zip", MD5)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip.part"]
    assert (tmp_path / "a.zip.part").read_bytes() == CONTENT[: module.CHUNK_BYTES]


FILES = {"set/corpus.jsonl": b"c" * 5000, "set/qrels/test.tsv": b"q", "other/x": b"x"}


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
    unpack(make(FILES), tmp_path / "data" / "set", inside="set")
    expected = {"set/corpus.jsonl": b"c" * 5000, "set/qrels/test.tsv": b"q"}
    assert content_of(tmp_path / "data") == expected


def test_wanted_files_join_those_that_are_there(make, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mine").write_bytes(b"m")
    unpack(make(FILES), folder, inside="set", wanted=["qrels/test.tsv"])
    assert content_of(folder) == {"mine": b"m", "qrels/test.tsv": b"q"}


@pytest.mark.parametrize("escape", ["../evil", "/tmp/evil", "set/../../evil"])
def test_no_member_leaves_the_folder(make, escape, tmp_path):
    archive = make({**FILES, escape: b"evil"})
    with suppress(BenchError):
        unpack(archive, tmp_path / "deep" / "data")
    outside = {path for path in tmp_path.rglob("*") if path.is_file()} - {archive}
    assert all(path.is_relative_to(tmp_path / "deep" / "data") for path in outside)
    assert not Path("/tmp/evil").exists()


def test_an_archive_that_was_cut_leaves_nothing(make, tmp_path):
    archive = make(FILES)
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(BenchError, match="cannot be unpacked") as caught:
        unpack(archive, tmp_path / "data")
    assert f"rm {archive}" in caught.value.hint
    assert list(tmp_path.iterdir()) == [archive]


def test_a_damaged_archive_is_found_by_its_checksum(tmp_path):
    archive = make_tar(tmp_path / "a.tar.gz", FILES)
    content = bytearray(archive.read_bytes())
    content[-8] ^= 1  # a bit of the CRC-32 that ends a gzip stream
    archive.write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_STORED) as opened:
        opened.writestr("set/corpus.jsonl", b"hello world")
    stored = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(stored.replace(b"hello", b"jello", 1))
    for path, match in ((archive, "CRC check failed"), (tmp_path / "a.zip", "Bad CRC-32")):
        with pytest.raises(BenchError, match=match):
            unpack(path, tmp_path / "data")
        assert not (tmp_path / "data").exists()


def test_a_member_missing_from_an_archive_is_named(make, tmp_path):
    archive = make(FILES)
    with pytest.raises(BenchError, match=r"has no titles\.txt in its folder 'set'"):
        unpack(archive, tmp_path / "data", "set", ["corpus.jsonl", "titles.txt"])
    with pytest.raises(BenchError, match="has no files in its folder 'elsewhere'"):
        unpack(archive, tmp_path / "data", "elsewhere")
    assert not (tmp_path / "data").exists()
