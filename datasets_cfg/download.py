"""Files of a collection: in a given folder, BENCH_DATA or the cache, or downloaded.

A collection of the Hugging Face Hub is ``hf://OWNER/NAME``, one of ir_datasets ``ir_datasets:X``.
Downloads resume, and archives are unpacked completely or not at all.
"""

import gzip
import hashlib
import http.client
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from datasets_cfg.catalogue import (
    HUB,
    IR_DATASETS,
    Archive,
    Metadata,
    data_folders,
    dataset_names,
    remote_name,
)
from datasets_cfg.readers.beir import BeirReader, write_collection
from datasets_cfg.readers.bright import BrightReader
from datasets_cfg.readers.dpr import DprReader
from datasets_cfg.readers.files import list_files
from datasets_cfg.readers.golden import GoldenReader
from datasets_cfg.readers.msmarco import MsmarcoReader
from datasets_cfg.readers.reader import Document, Reader, assume, collect_assumptions
from datasets_cfg.readers.trec import TrecReader
from foundation.errors import (
    BenchError,
    MissingFileError,
    did_you_mean,
    first_line,
    format_count,
    format_names,
    import_package,
    name_path_in_errors,
)
from foundation.files import replace_entries, replace_folder, reset_permissions, temporary_folder

READERS: dict[str, type[Reader]] = {
    "beir": BeirReader,
    "bright": BrightReader,
    "dpr": DprReader,
    "golden": GoldenReader,
    "msmarco": MsmarcoReader,
    "trec": TrecReader,
}
CHUNK_BYTES = 1 << 20
ATTEMPTS = 5
FIRST_WAIT_S = 0.5
TIMEOUT_S = 60.0
_CONNECTION_ERRORS = (ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)
_IR_HINT = "See https://ir-datasets.com for ids and instructions."
_RANGE_REFUSED = 416
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
# RuntimeError: zipfile raises it for encryption and unknown compression
_ARCHIVE_ERRORS = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError)


def reader_of_layout(name: str) -> type[Reader]:
    """Return the reader of the layout ``name``."""
    if name not in READERS:
        hint = did_you_mean(name, READERS, f"Use one of {', '.join(READERS)}.")
        raise BenchError(f"there is no layout {name!r}", hint)
    return READERS[name]


def detect_layout(folder: Path) -> str:
    """Return the layout of ``folder``, identified by its files."""
    with collect_assumptions():  # the chosen reader makes its own
        found = [name for name, kind in READERS.items() if kind.recognises(folder)]
    if "trec" in found:  # whose documents may be in a file of another layout
        return "trec"
    if len(found) > 1 and "golden" in found:  # tables next to the files of a layout
        found.remove("golden")
    if len(found) == 1:
        return found[0]
    names = {name for kind in READERS.values() for name in kind.corpus_names}
    patterns = [f"{above}/{name}*" for name in names for above in ("*", "*/*")]
    inner = sorted({path.parent for pattern in patterns for path in folder.glob(pattern)})
    if inner and not found:
        count = format_count(len(inner), "collection", "collections")
        hint = f"Name one of them: {format_names([str(path) for path in inner])}"
        raise BenchError(f"{folder} is not a collection, but a folder with {count}", hint)
    problem = f"holds the corpora of {' and '.join(found)}" if found else "is not a collection"
    layouts = [f"{kind.expected.format(split='test')} ({name})" for name, kind in READERS.items()]
    hint = f"Put the files of one layout there: {'; '.join(layouts)}"
    raise BenchError(f"{folder} {problem}", hint)


def folder_of_table(name: str) -> str:
    """Return the folder of a golden set for the path of its table, other names as they are."""
    path = Path(name).expanduser()
    is_set = GoldenReader.is_golden(path) and detect_layout(path.parent) == "golden"
    return str(path.parent) if is_set else name


def is_training_data(name: str) -> bool:
    """Return whether ``name`` is a file, or a folder of training files and not a collection."""
    path = Path(name).expanduser()
    if name in dataset_names():
        return False
    if path.is_dir():
        is_collection = any(kind.recognises(path) for kind in READERS.values())
        return not is_collection and bool(list_files(path))
    return path.is_file() and path.suffix != ".toml"


def find_files(
    metadata: Metadata,
    data_dir: Path | None,
    cache_dir: Path,
    fetch: bool = True,
    with_corpus: bool = True,
) -> Path:
    """Return the folder that holds the files of a collection, downloading them if necessary.

    The order is ``data_dir``, BENCH_DATA, the cache, a download to the cache. In the first two, the
    files may lie in ``<name>``, in a folder called like the last parts of the name (``scifact``),
    or at the top. Without ``with_corpus``, queries and judgements suffice.
    """
    given = data_folders(data_dir)
    for root in given:
        for folder in _candidates(metadata, root):
            if _has_files(metadata, folder, with_corpus):
                return folder
    folder = cached_folder(metadata, cache_dir)
    if not (metadata.public and with_corpus) and _has_files(metadata, folder, with_corpus):
        return folder
    if not metadata.public:
        raise _licence_error(metadata, [*given, cache_dir / "data"])
    if metadata.hub:
        patterns = reader_of_layout(metadata.layout).patterns
        wanted = [pattern.format(split=metadata.split) for pattern in patterns]
        return fetch_snapshot(metadata.hub, wanted, fetch, metadata.name)
    needed = [
        archive for archive in metadata.archives if with_corpus or _has_qrels(metadata, archive)
    ]
    missing = [archive for archive in needed if not _is_present(metadata, archive, folder)]
    if missing and not fetch:
        problem = BenchError(f"not found in {folder}, and downloads are off")
        raise _absent_error(metadata, missing[0], problem, cache_dir)
    for archive in missing:
        _download_archive(metadata, archive, folder, cache_dir)
    return folder


def cached_folder(metadata: Metadata, cache_dir: Path) -> Path:
    """Return the folder below ``cache_dir`` for the files of the collection ``metadata``."""
    return cache_dir / "data" / (metadata.folder or metadata.name)


def archive_path(metadata: Metadata, archive: Archive, cache_dir: Path) -> Path:
    """Return the path of a downloaded file in the cache. Plain files lie with the collection."""
    if archive.is_packed:
        return cache_dir / "archives" / archive.file_name
    return cached_folder(metadata, cache_dir) / archive.file_name


def _candidates(metadata: Metadata, root: Path) -> Iterator[Path]:
    for name in dict.fromkeys((metadata.name, metadata.folder or metadata.name)):
        parts = PurePosixPath(name).parts
        for start in range(len(parts)):
            yield root.joinpath(*parts[start:])
    yield root


def _has_files(metadata: Metadata, folder: Path, with_corpus: bool) -> bool:
    """Return whether a folder has the corpus files, or else the files of queries and judgements."""
    reader = reader_of_layout(metadata.layout)(
        folder, metadata.split, metadata.title_track == "title"
    )
    try:
        _ = reader.corpus_files() if with_corpus else reader.judgement_files()
    except MissingFileError:
        return False
    return True


def _has_qrels(metadata: Metadata, archive: Archive) -> bool:
    """Return whether an archive holds more than documents."""
    return not set(_file_names(archive)) <= set(reader_of_layout(metadata.layout).corpus_names)


def _is_present(metadata: Metadata, archive: Archive, folder: Path) -> bool:
    """Return whether the files of an archive are in a folder, plain or gzip-compressed."""
    if archive.is_packed and not archive.files:
        return _has_files(metadata, folder, with_corpus=True)
    return not _missing_files(archive, folder)


def _missing_files(archive: Archive, folder: Path) -> list[str]:
    """Return the files of an archive that are not in a folder, plain or gzip-compressed."""
    forms = {name: (folder / name, folder / f"{name}.gz") for name in _file_names(archive)}
    return [name for name, paths in forms.items() if not any(path.is_file() for path in paths)]


def _file_names(archive: Archive) -> tuple[str, ...]:
    return archive.files or (archive.file_name.removesuffix(".gz"),)


def _download_archive(metadata: Metadata, archive: Archive, folder: Path, cache_dir: Path) -> None:
    path = archive_path(metadata, archive, cache_dir)
    if path.is_file():
        _check_once(path, archive.md5)
    else:
        try:
            download(archive.url, path, archive.md5)
        except BenchError as error:
            raise _absent_error(metadata, archive, error, cache_dir) from error
    if archive.is_packed:
        wanted = archive.files and _missing_files(archive, folder)
        unpack(path, folder, archive.folder, wanted)


@cache  # since the twelve forums of CQADupStack share an archive of gigabytes
def _check_once(path: Path, md5: str) -> None:
    check_md5(path, md5, str(path))


def _absent_error(
    metadata: Metadata, archive: Archive, why: BenchError, cache_dir: Path
) -> BenchError:
    files = ", ".join(archive.files) or archive.file_name
    return BenchError(
        f"{metadata.name}: {files} from {archive.url}: {why}",
        hint=f"{why.hint} ".lstrip()
        + f"If the files are on this machine, put them in DIR/{metadata.name} and use --data-dir "
        f"DIR. Without a network, run `python -m bench fetch {metadata.name}` on another machine "
        f"and copy its cache folder to {cache_dir}",
    )


def _licence_error(metadata: Metadata, looked: list[Path]) -> BenchError:
    files = reader_of_layout(metadata.layout).expected.format(split=metadata.split)
    places = ", ".join(map(str, looked))
    return BenchError(
        f"{metadata.name} needs a licence and cannot be downloaded; it was not found in {places}",
        f"Obtain it:\n{metadata.instructions.strip()}\nthen put {files} into "
        f"{looked[0] / metadata.name}, and run again with --data-dir {looked[0]}",
    )


def download(url: str, target: Path, md5: str = "") -> Path:
    """Download a file over HTTP and return its path.

    Bytes go to ``target`` + ".part", which a later call resumes. Broken connections are retried.
    """
    part = target.with_name(f"{target.name}.part")
    with name_path_in_errors(part):
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive_with_retries(url, part)
        check_md5(part, md5, url)
        return part.replace(target)


def check_md5(path: Path, md5: str, source: str) -> None:
    """Compare a file with its checksum, unless that is "", and remove the file if it differs."""
    if not md5:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest != md5:
        path.unlink()
        raise BenchError(
            f"{source}: the MD5 of the file is {digest}, not {md5}; the file was removed",
            hint="Try again; if it stays the same, the source has changed: do not compare scores.",
        )


def unpack(archive: Path, folder: Path, inside: str = "", wanted: Collection[str] = ()) -> None:
    """Extract files of a zip or tar.gz into a folder.

    A new folder appears when it is complete. Other files of an existing folder stay. Links and
    devices are skipped, and nothing is written outside of ``folder``. The ``wanted`` files, or all,
    are those below the folder ``inside`` the archive.
    """
    into = replace_entries if folder.exists() else replace_folder
    with into(folder) as unfinished, temporary_folder(folder.parent) as temporary:
        try:
            _extract(archive, temporary, inside, wanted)
        except (*_ARCHIVE_ERRORS, gzip.BadGzipFile) as error:
            hint = f"Remove it with `rm {archive}` and repeat the command to download it again."
            raise BenchError(f"{archive} cannot be unpacked: {error}", hint) from error
        unpacked = temporary / inside
        missing = [name for name in sorted(wanted) if not (unpacked / name).is_file()]
        if missing or not unpacked.is_dir():
            names = ", ".join(missing) or "files"
            raise BenchError(f"{archive} has no {names} in its folder {inside or '/'!r}")
        reset_permissions(unpacked)
        for path in unpacked.iterdir():
            path.rename(unfinished / path.name)


def _extract(archive: Path, target: Path, inside: str, wanted: Collection[str]) -> None:
    """Unpack the wanted files. zipfile and tarfile keep them inside ``target``."""

    def is_wanted(name: str) -> bool:
        path = PurePosixPath(name)
        below = path.is_relative_to(inside)
        return below and (not wanted or str(path.relative_to(inside)) in wanted)

    about = f"unpack {archive.name}"
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(target, tqdm(filter(is_wanted, opened.namelist()), about))
        return
    with gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            files = (member for member in tar if member.isfile() and is_wanted(member.name))
            tar.extractall(target, tqdm(files, about), filter="data")
        while stream.read(CHUNK_BYTES):  # gzip compares the checksum at the end
            pass


def _receive_with_retries(url: str, part: Path) -> None:
    for attempt in range(ATTEMPTS):
        try:
            return _receive(url, part)
        except urllib.error.HTTPError as error:
            problem = f"the server answers {error.code} {error.reason}"
            if error.code == _RANGE_REFUSED:  # the part is not the beginning of the file
                part.unlink()
            elif error.code not in _RETRIED_STATUSES:
                raise BenchError(f"{url}: {problem}") from error
        except urllib.error.URLError as error:
            raise BenchError(f"{url} cannot be reached: {error.reason}") from error
        except _CONNECTION_ERRORS as error:
            problem = str(error) or type(error).__name__
        time.sleep(FIRST_WAIT_S * 2**attempt)
    raise BenchError(
        f"{url}: the connection broke {ATTEMPTS} times: {problem}",
        hint=f"Repeat the command to continue after the {_size(part):,} bytes received so far.",
    )


def _receive(url: str, part: Path) -> None:
    have = max(_size(part) - 1, 0)  # read the last byte again: a range after the end is invalid
    headers = {"User-Agent": "retrieval-bench", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        continued = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        start = have if continued else 0
        stated = response.headers.get("Content-Length", "")
        total = start + int(stated) if stated.isdecimal() else None
        with (
            part.open("r+b" if start else "wb") as file,
            tqdm(desc=part.stem, initial=start, total=total, unit="B", unit_scale=True) as bar,
        ):
            file.seek(start)
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))
    if total is not None and _size(part) < total:
        raise ConnectionError(f"received {_size(part):,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def fetch_remote(name: str, cache_dir: Path, download: bool) -> Path:
    """Return the folder of the collection ``name``, after downloading it if necessary."""
    if name.startswith(HUB):
        return fetch_snapshot(name.removeprefix(HUB), Reader.patterns, download, name)
    folder = cache_dir / "data" / remote_name(name).replace("/", "--")  # an id may begin another
    if not folder.is_dir():
        if not download:
            problem = f"{name} is not in {folder}, and downloads are off"
            raise BenchError(problem, f"Run `python -m bench fetch {name}` on a connected machine.")
        _export(name.removeprefix(IR_DATASETS), folder)
    return folder


def fetch_snapshot(repository: str, patterns: Sequence[str], download: bool, name: str) -> Path:
    """Return the folder of a snapshot of ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` on the Hub.

    Only files that match ``patterns`` are downloaded. The commit is an assumption. ``name`` is that
    of the collection in advice.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    # requests.HTTPError, or httpx.HTTPError since huggingface_hub 1, which is not an OSError
    http_errors: tuple[Any, ...] = HfHubHTTPError.__bases__
    owner_and_name, _, revision = repository.partition("@")
    try:
        folder = snapshot_download(
            owner_and_name,
            repo_type="dataset",
            revision=revision or None,
            allow_patterns=list(patterns),
            ignore_patterns=["*.py"],
            local_files_only=not download,
        )
    except (OSError, ValueError, *http_errors) as error:
        raise BenchError(
            f"cannot get {HUB}{repository} from the Hugging Face Hub: {first_line(error)}",
            f"Run `python -m bench fetch {name}` on a connected machine and copy its "
            "cache (HF_HOME), or give a local clone.",
        ) from error
    assume(f"{HUB}{owner_and_name} is read at commit {Path(folder).name}", None)
    return Path(folder)


def _export(id_: str, folder: Path) -> None:
    """Write a dataset of ir_datasets in BEIR's layout."""
    problem, hint = f"{IR_DATASETS}{id_} needs ir_datasets", "pip install ir_datasets"
    package = import_package("ir_datasets", problem, hint)
    try:
        dataset = package.load(id_)
    except KeyError as error:
        problem = f"ir_datasets cannot read {id_!r}: there is no {error}"
        raise BenchError(problem, _IR_HINT) from error
    try:
        if missing := [part for part in ("docs", "queries", "qrels") if not dataset.has(part)]:
            raise BenchError(f"it has no {' and no '.join(missing)}", "Choose one of its subsets.")
        metadata = {"name": remote_name(IR_DATASETS + id_), "layout": "beir", "split": "test"}
        with replace_folder(folder) as unfinished:
            write_collection(
                unfinished,
                map(_document, dataset.docs_iter()),
                ((each.query_id, each.default_text()) for each in dataset.queries_iter()),
                ((each.query_id, each.doc_id, each.relevance) for each in dataset.qrels_iter()),
                {**metadata, "version": f"ir_datasets {package.__version__}"},
            )
    except (BenchError, OSError, RuntimeError, ValueError) as error:
        problem = f"ir_datasets cannot read {id_!r}: {first_line(error)}"
        raise BenchError(problem, getattr(error, "hint", _IR_HINT)) from error


def _document(document: Any) -> Document:
    """Return a document of ir_datasets, whose default text begins with its title, if it has one."""
    text = document.default_text()
    if not hasattr(document, "title"):
        return Document(document.doc_id, "", text)
    title = document.title or ""
    return Document(document.doc_id, title, text.removeprefix(f"{title} "))
