"""Location of a collection's files: a given folder, BENCH_DATA, the cache, or a download."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from datasets_cfg.catalogue import Archive, Facts, data_folders
from datasets_cfg.download import check_md5, download, unpack
from datasets_cfg.readers import reader_of_layout
from foundation.errors import BenchError


def find_files(
    facts: Facts,
    data_dir: Path | None,
    cache_dir: Path,
    fetch: bool = True,
    with_corpus: bool = True,
) -> Path:
    """Return the folder that holds the files of a collection, downloading them if necessary.

    The order is ``data_dir``, BENCH_DATA, the cache, a download to the cache. In the first two, the
    files may lie in ``<name>``, in a folder called like the last parts of the name (``scifact``),
    or at the top.

    Args:
        facts: of a declared collection.
        data_dir: folder given by the user, if any.
        cache_dir: folder for downloads.
        fetch: whether the network may be used.
        with_corpus: whether documents are needed, or only queries and judgements.

    Raises:
        BenchError: the files are missing. The hint says how to obtain them and which folder to use.
    """
    given = data_folders(data_dir)
    for root in given:
        for folder in _candidates(facts, root):
            if _has_files(facts, folder, with_corpus):
                return folder
    folder = cached_folder(facts, cache_dir)
    if not (facts.public and with_corpus) and _has_files(facts, folder, with_corpus):
        return folder
    if not facts.public:
        raise _licence_error(facts, [*given, cache_dir / "data"])
    needed = [archive for archive in facts.archives if with_corpus or _has_qrels(facts, archive)]
    missing = [archive for archive in needed if not _is_present(facts, archive, folder)]
    if missing and not fetch:
        problem = BenchError(f"not found in {folder}, and downloads are off")
        raise _absent_error(facts, missing[0], problem, cache_dir)
    for archive in missing:
        _download_archive(facts, archive, folder, cache_dir)
    return folder


def cached_folder(facts: Facts, cache_dir: Path) -> Path:
    """Return the folder below ``cache_dir`` for the files of the collection ``facts``."""
    return cache_dir / "data" / (facts.folder or facts.name)


def archive_path(facts: Facts, archive: Archive, cache_dir: Path) -> Path:
    """Return the path of a downloaded file in the cache.

    Archives have a folder of their own. Plain files lie with the collection.

    Args:
        facts: of the collection.
        archive: the download.
        cache_dir: cache folder.
    """
    if archive.is_packed:
        return cache_dir / "archives" / archive.file_name
    return cached_folder(facts, cache_dir) / archive.file_name


def _candidates(facts: Facts, root: Path) -> Iterator[Path]:
    for name in dict.fromkeys((facts.name, facts.folder or facts.name)):
        parts = PurePosixPath(name).parts
        for start in range(len(parts)):
            yield root.joinpath(*parts[start:])
    yield root


def _has_files(facts: Facts, folder: Path, with_corpus: bool) -> bool:
    """Return whether a folder has the corpus files, or else the files of queries and judgements."""
    reader = reader_of_layout(facts.layout)(folder, facts.split, facts.title_track == "title")
    try:
        _ = reader.corpus_files() if with_corpus else reader.judgement_files()
    except BenchError:
        return False
    return True


def _has_qrels(facts: Facts, archive: Archive) -> bool:
    """Return whether an archive holds more than documents."""
    return not set(_file_names(archive)) <= set(reader_of_layout(facts.layout).corpus_names)


def _is_present(facts: Facts, archive: Archive, folder: Path) -> bool:
    """Return whether the files of an archive are in a folder, plain or gzip-compressed."""
    if archive.is_packed and not archive.files:
        return _has_files(facts, folder, with_corpus=True)
    return not _missing_files(archive, folder)


def _missing_files(archive: Archive, folder: Path) -> list[str]:
    """Return the files of an archive that are not in a folder, plain or gzip-compressed."""
    return [
        name
        for name in _file_names(archive)
        if not (folder / name).is_file() and not (folder / f"{name}.gz").is_file()
    ]


def _file_names(archive: Archive) -> tuple[str, ...]:
    return archive.files or (archive.file_name.removesuffix(".gz"),)


def _download_archive(facts: Facts, archive: Archive, folder: Path, cache_dir: Path) -> None:
    path = archive_path(facts, archive, cache_dir)
    if path.is_file():
        _check_once(path, archive.md5, str(path))
    else:
        try:
            download(archive.url, path, archive.md5, archive.size_bytes)
        except BenchError as error:
            raise _absent_error(facts, archive, error, cache_dir) from error
    if archive.is_packed:
        wanted = archive.files and _missing_files(archive, folder)
        unpack(path, folder, archive.folder, wanted)


# Once per process, since the twelve forums of CQADupStack share an archive of gigabytes.
_check_once = cache(check_md5)


def _absent_error(facts: Facts, archive: Archive, why: BenchError, cache_dir: Path) -> BenchError:
    files = ", ".join(archive.files) or archive.file_name
    return BenchError(
        f"{facts.name}: {files} from {archive.url}: {why}",
        hint=f"{why.hint}; ".lstrip("; ")
        + f"if the files are on this machine, put them in DIR/{facts.name} and use --data-dir DIR; "
        f"without a network, run `python -m bench fetch {facts.name}` on another machine and "
        f"copy its cache folder to {cache_dir}",
    )


def _licence_error(facts: Facts, looked: list[Path]) -> BenchError:
    files = reader_of_layout(facts.layout).expected.format(split=facts.split)
    return BenchError(
        f"{facts.name} needs a licence and cannot be downloaded; it was not found in "
        f"{', '.join(map(str, looked))}",
        hint=f"obtain it:\n{facts.instructions.strip()}\n"
        f"then put {files} into {looked[0] / facts.name}, and run again with --data-dir "
        f"{looked[0]}",
    )
