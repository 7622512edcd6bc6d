"""Places of results: local paths stay paths, and a real S3 server keeps what is written to it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.errors import BenchError
from foundation.files import RemotePath, files_below, parse_location, replace_file
from tests.support import s3


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Address of the server, and the folder of its bucket."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "bucket").mkdir()
    with s3.served(folder) as address:
        yield address, folder / "bucket"


@pytest.fixture
def bucket(server, monkeypatch):
    """Folder of a bucket that this process may write to."""
    address, folder = server
    s3.allow(monkeypatch, address)
    return folder


@pytest.mark.parametrize("text", ["results", "/a/b", "./s3", "a:b/c", "C:x"])
def test_a_location_without_a_scheme_is_a_local_path(text):
    assert parse_location(text) == Path(text)


def test_a_url_keeps_its_slashes_and_a_file_url_is_local():
    assert parse_location("s3://bucket/a/b/") == RemotePath("s3://bucket/a/b")
    assert str(parse_location("gs://bucket/a")) == "gs://bucket/a"
    assert parse_location("file:///a/b") == Path("/a/b")


@pytest.mark.parametrize(
    ("text", "message"),
    [("s3://", "no bucket"), ("s3:///a", "no bucket"), ("s3:/bucket/a", "one slash too few")],
)
def test_half_a_url_is_refused(text, message):
    with pytest.raises(BenchError, match=message):
        parse_location(text)


@given(st.lists(st.text("abc.-_", min_size=1).filter(lambda name: name != "."), min_size=1))
def test_names_are_joined_and_taken_apart_as_those_of_a_local_path(names):
    remote, local = parse_location("s3://bucket"), Path("/bucket")
    for name in names:
        remote, local = remote / name, local / name
    assert (remote.name, remote.suffix) == (local.name, os.path.splitext(local.name)[1])  # noqa: PTH122
    assert str(remote.parent) == f"s3:/{local.parent}"


@pytest.mark.parametrize("scheme", ["nosuchstore", "memory", "ftp", "http"])
def test_an_unknown_kind_of_store_lists_the_known_ones(scheme):
    with pytest.raises(BenchError, match=f"unknown kind of store {scheme}") as error:
        parse_location(f"{scheme}://bucket/a")
    assert "s3://, gs://" in error.value.hint


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if it were not installed
    with pytest.raises(BenchError, match="needs gcsfs") as error:
        parse_location("gs://bucket/a").read_bytes()
    assert error.value.hint == "pip install gcsfs"


@pytest.mark.slow
def test_local_paths_and_the_options_of_every_command_import_no_fsspec():
    program = (
        "import sys; from bench.cli.main import parse_command; "
        "from foundation.files import parse_location; "
        "parse_location('results').exists(); parse_command(['run', 'a', '--model', 'b']); "
        "print('fsspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_an_object_is_read_as_it_was_written(bucket):
    place = parse_location("s3://bucket/read/one.bin")
    with replace_file(place) as file:
        file.write(b"\0some bytes")
    assert place.read_bytes() == b"\0some bytes"
    assert (bucket / "read" / "one.bin").read_bytes() == b"\0some bytes"
    assert (place.exists(), place.is_file(), place.is_dir()) == (True, True, False)
    assert (place.parent.exists(), place.parent.is_file(), place.parent.is_dir()) == (
        True,
        False,
        True,
    )


def test_nothing_is_written_where_the_block_fails(bucket):
    place = parse_location("s3://bucket/failed")
    with pytest.raises(TypeError), replace_file(place) as file:
        file.writelines([b"half", None])
    assert not place.exists()
    with pytest.raises(FileNotFoundError, match="s3://bucket/failed"):
        place.read_bytes()


def test_an_object_is_never_written_over(bucket):
    place = parse_location("s3://bucket/kept")
    place.create(b"first")
    place.create(b"first")
    with pytest.raises(BenchError, match="exists already, with different content"):
        place.create(b"second")
    assert place.read_bytes() == b"first"


def test_files_below_have_the_order_of_their_paths(bucket):
    root = parse_location("s3://bucket/below")
    keys = ["b/x.json", "a-b/x.json", "a/x.json", "a/y.json", "x.json.bak"]
    for key in keys:
        (root / key).create(key.encode())
    found = files_below(root, "x.json")
    assert [str(one) for one in found] == [
        f"s3://bucket/below/{key}" for key in ("a/x.json", "a-b/x.json", "b/x.json")
    ]
    assert [one.read_bytes() for one in found] == [b"a/x.json", b"a-b/x.json", b"b/x.json"]
    assert files_below(parse_location("s3://bucket/empty"), "x.json") == []


def test_a_missing_bucket_is_named(bucket):
    place = parse_location("s3://missing/a")
    for use in (place.check_writable, lambda: place.create(b""), lambda: place.rglob("x")):
        with pytest.raises(BenchError, match="there is no bucket missing"):
            use()


def test_wrong_credentials_are_refused_before_anything_else(server, monkeypatch):
    s3.allow(monkeypatch, server[0], secret="wrong")
    place = parse_location("s3://bucket/a")
    for use in (place.check_writable, lambda: place.rglob("x"), place.read_bytes):
        with pytest.raises(BenchError, match="s3://bucket/a") as error:
            use()
        assert "AWS_SECRET_ACCESS_KEY" in error.value.hint


def test_an_unreachable_server_gives_one_clear_error(server, monkeypatch):
    s3.allow(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(BenchError, match=r"s3://bucket/a.*connect"):
        parse_location("s3://bucket/a").check_writable()
