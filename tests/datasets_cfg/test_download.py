"""Downloads from a real server on the loopback interface."""

import hashlib
import random
import socket
import urllib.request
from email.message import Message

import pytest

from datasets_cfg import download as module
from datasets_cfg.download import ATTEMPTS, download, md5_of
from foundation.errors import BenchError

CONTENT = random.Random(0).randbytes(3_000_001)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.0)


def test_a_download_has_the_bytes_of_the_server(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    target = download(file_server.url("a.zip"), tmp_path / "new" / "a.zip", MD5, len(CONTENT))
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["a.zip"]


def test_an_empty_file_can_be_downloaded(file_server, tmp_path):
    file_server.files["a"] = b""
    assert download(file_server.url("a"), tmp_path / "a").read_bytes() == b""


def test_a_part_is_resumed_through_a_range(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    (tmp_path / "a.zip.part").write_bytes(CONTENT[:2_000_000])
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT
    assert file_server.requests == ["bytes=1999999-"]


def test_a_part_that_is_already_whole_is_finished(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT
    assert len(file_server.requests) == 1


def test_a_part_longer_than_the_file_is_thrown_away(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    (tmp_path / "a.zip.part").write_bytes(CONTENT + b"of another release")
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_makes_the_file_start_anew(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    file_server.ranges = False
    (tmp_path / "a.zip.part").write_bytes(b"x" * 1000)
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT


def test_a_cut_connection_is_taken_up_again(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    file_server.cuts = [1_000_000, 1_000_000]
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT
    assert file_server.requests == [None, "bytes=999999-", "bytes=1999998-"]


def test_a_connection_that_keeps_breaking_leaves_the_part_for_the_next_call(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    file_server.cuts = [1000] * ATTEMPTS
    with pytest.raises(BenchError, match=r"broke 5 times: 4,996 of 3,000,001") as caught:
        download(file_server.url("a.zip"), tmp_path / "a.zip", MD5)
    assert "4,996 bytes" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip.part"]
    assert download(file_server.url("a.zip"), tmp_path / "a.zip", MD5).read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(file_server, tmp_path):
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


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/a.zip", "file:///etc/passwd", "data:,x"])
def test_a_server_that_sends_on_to_what_is_not_http_is_not_followed(target, file_server, tmp_path):
    file_server.redirects["a.zip"] = target
    with pytest.raises(BenchError) as caught:
        download(file_server.url("a.zip"), tmp_path / "a.zip")
    assert target in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["http://mirror.org/a.zip", "ftp://mirror.org/a.zip"])
def test_a_safe_address_is_not_left_for_a_plain_one(target):
    asked = urllib.request.Request("https://source.org/a.zip")
    with pytest.raises(BenchError, match=f"sends on to {target}, which is not followed"):
        module._SafeRedirects().redirect_request(asked, None, 302, "Found", Message(), target)
    safe = target.replace("http://", "https://").replace("ftp://", "https://")
    followed = module._SafeRedirects().redirect_request(asked, None, 302, "", Message(), safe)
    assert followed.full_url == safe


@pytest.mark.parametrize("length", ["abc", "-5", "1e3", "9" * 400, "\u00b2"])
def test_a_size_that_is_no_number_is_refused_in_words(length, file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    file_server.stated_length = length
    with pytest.raises(BenchError, match=r"/a.zip: the server states the size .* no number"):
        download(file_server.url("a.zip"), tmp_path / "a.zip", MD5)
    assert not (tmp_path / "a.zip").exists()


def test_a_host_that_does_not_listen_is_named(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(BenchError, match=rf"127.0.0.1:{port}/a.zip cannot be reached: .*refused"):
        download(f"http://127.0.0.1:{port}/a.zip", tmp_path / "a.zip")


def test_a_disk_that_fills_up_is_named_with_the_bytes_needed(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    (tmp_path / "a.zip.part").symlink_to("/dev/full")  # every write fails with ENOSPC
    with pytest.raises(BenchError, match=r"disk is full: .*a.zip.part \(3,000,001 bytes") as caught:
        download(file_server.url("a.zip"), tmp_path / "a.zip", MD5, len(CONTENT))
    assert "free some space" in caught.value.hint


def test_a_disk_that_is_too_small_is_refused_before_the_download(file_server, tmp_path):
    file_server.files["a.zip"] = CONTENT
    with pytest.raises(BenchError, match="disk is full"):
        download(file_server.url("a.zip"), tmp_path / "a.zip", MD5, size_bytes=1 << 60)
    assert file_server.requests == []


def test_ctrl_c_leaves_only_the_part(file_server, tmp_path, monkeypatch):
    file_server.files["a.zip"] = CONTENT
    chunks = module._chunks

    def interrupted(response):
        yield next(chunks(response))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download(file_server.url("a.zip"), tmp_path / "a.zip", MD5)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip.part"]
    assert (tmp_path / "a.zip.part").read_bytes() == CONTENT[: module.CHUNK_BYTES]


def test_md5_is_that_of_the_content(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert md5_of(path) == "900150983cd24fb0d6963f7d28e17f72"  # RFC 1321, appendix A.5
