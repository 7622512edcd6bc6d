import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from datasets_cfg.unpack import unpack
from foundation.errors import BenchError

ROOT = Path(__file__).parents[2]
UNPACKS_FOR_EVER = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from datasets_cfg import unpack\n"
    "def wait(*_):\n"
    "    print('unpacking', flush=True)\n"
    "    time.sleep(600)\n"
    "unpack._refuse_missing = wait\n"
    "unpack.unpack(Path(sys.argv[1]), Path(sys.argv[2]))\n"
)
FILES = {"set/corpus.jsonl": b"c" * 5000, "set/qrels/test.tsv": b"q", "other/x": b"x"}
ESCAPES = ["../evil", "/tmp/evil", "set/../../evil", "..\\evil", "C:\\evil", "\\evil"]


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_tar(path: Path, files: dict[str, bytes], *special: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in special:
            archive.addfile(member)
    return path


MAKERS = {"a.zip": make_zip, "a.tar.gz": make_tar}


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", MAKERS)
def test_one_folder_of_an_archive_becomes_the_folder(name, tmp_path):
    archive = MAKERS[name](tmp_path / name, FILES)
    unpack(archive, tmp_path / "data" / "set", inside="set")
    expected = {"corpus.jsonl": FILES["set/corpus.jsonl"], "qrels/test.tsv": b"q"}
    assert content_of(tmp_path / "data") == {f"set/{key}": value for key, value in expected.items()}


def test_what_a_killed_process_unpacked_is_removed_by_the_next(tmp_path):
    archive, folder = make_zip(tmp_path / "a.zip", FILES), tmp_path / "data" / "set"
    command = [sys.executable, "-c", UNPACKS_FOR_EVER, str(archive), str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "unpacking\n"
        process.kill()
    (left,) = folder.parent.iterdir()
    assert left != folder
    unpack(archive, folder)
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("name", MAKERS)
def test_wanted_files_join_those_that_are_there(name, tmp_path):
    archive = MAKERS[name](tmp_path / name, FILES)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mine").write_bytes(b"m")
    unpack(archive, folder, inside="set", wanted=["qrels/test.tsv"])
    assert content_of(folder) == {"mine": b"m", "qrels/test.tsv": b"q"}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("escape", ESCAPES)
def test_a_member_that_leaves_the_folder_is_refused_by_name(name, escape, tmp_path):
    archive = MAKERS[name](tmp_path / name, {**FILES, escape: b"evil"})
    folder = tmp_path / "deep" / "data"
    with pytest.raises(BenchError, match="leads out of the folder") as caught:
        unpack(archive, folder)
    assert repr(escape) in str(caught.value)
    assert content_of(tmp_path / "deep") == {}
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_a_link_or_device_in_a_tar_is_refused_by_name(kind, tmp_path):
    member = tarfile.TarInfo("set/link")
    member.type, member.linkname = kind, "/etc/passwd"
    archive = make_tar(tmp_path / "a.tar.gz", FILES, member)
    with pytest.raises(BenchError, match="'set/link' is a link or a device"):
        unpack(archive, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_link_in_a_zip_is_refused_by_name(tmp_path):
    link = zipfile.ZipInfo("set/link")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(BenchError, match="'set/link' is a link"):
        unpack(tmp_path / "a.zip", tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", MAKERS)
def test_an_archive_that_was_cut_leaves_nothing(name, tmp_path):
    archive = MAKERS[name](tmp_path / name, FILES)
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(BenchError, match="cannot be unpacked") as caught:
        unpack(archive, tmp_path / "data")
    assert f"rm {archive}" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_damaged_tar_is_found_by_its_checksum(tmp_path):
    archive = make_tar(tmp_path / "a.tar.gz", FILES)
    content = bytearray(archive.read_bytes())
    content[-8] ^= 1  # a bit of the CRC-32 that ends a gzip stream
    archive.write_bytes(content)
    with pytest.raises(BenchError, match="CRC check failed"):
        unpack(archive, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_damaged_member_of_a_zip_is_found_by_its_checksum(tmp_path):
    archive = make_zip(tmp_path / "a.zip", {})
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as opened:
        opened.writestr("set/corpus.jsonl", b"hello world")
    archive.write_bytes(archive.read_bytes().replace(b"hello", b"jello", 1))
    with pytest.raises(BenchError, match="Bad CRC-32"):
        unpack(archive, tmp_path / "data")


@pytest.mark.parametrize("name", MAKERS)
def test_an_archive_that_unpacks_to_more_than_any_collection_is_refused(
    name, tmp_path, monkeypatch
):
    monkeypatch.setattr("datasets_cfg.unpack.ALWAYS_ALLOWED", 1_000_000)
    bomb = MAKERS[name](tmp_path / name, {**FILES, "set/corpus.jsonl": bytes(20_000_000)})
    assert bomb.stat().st_size < 50_000
    with pytest.raises(BenchError, match=r"unpacks to more than 1,\d+,\d+ bytes") as caught:
        unpack(bomb, tmp_path / "data", inside="set")
    assert "made to fill a disk" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == [name]
    unpack(bomb, tmp_path / "data", inside="set", wanted=["qrels/test.tsv"])  # the harmless part


def test_the_holes_of_a_sparse_file_in_a_tar_count(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets_cfg.unpack.ALWAYS_ALLOWED", 1_000_000)
    hole = tarfile.TarInfo("set/corpus.jsonl")
    hole.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": f"{1 << 40},0"}
    archive = make_tar(tmp_path / "a.tar.gz", FILES, hole)
    with pytest.raises(BenchError, match="unpacks to more than 1,000,000 bytes"):
        unpack(archive, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_very_many_empty_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets_cfg.unpack.ALWAYS_ALLOWED", 1_000_000)
    archive = make_tar(tmp_path / "a.tar.gz", {f"set/{number}": b"" for number in range(1500)})
    with pytest.raises(BenchError, match="unpacks to more than"):
        unpack(archive, tmp_path / "data")


@pytest.mark.parametrize("name", MAKERS)
def test_what_the_archive_lacks_is_named(name, tmp_path):
    archive = MAKERS[name](tmp_path / name, FILES)
    with pytest.raises(BenchError, match=r"has no titles\.txt in its folder 'set'"):
        unpack(archive, tmp_path / "data", "set", ["corpus.jsonl", "titles.txt"])
    with pytest.raises(BenchError, match="has no files in its folder 'elsewhere'"):
        unpack(archive, tmp_path / "data", "elsewhere")
    assert not (tmp_path / "data").exists()
