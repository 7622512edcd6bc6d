"""MS MARCO's passages as they are published: one archive with its genuine members, on a server."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from datasets_cfg import catalogue
from datasets_cfg.catalogue import Archive, Counts, Metadata
from tests.support.file_server import FileServer, serve

ARCHIVE = "collectionandqueries.tar.gz"
OTHERS = ("queries.dev.tsv", "queries.eval.tsv", "queries.eval.small.tsv")  # also in the archive


def pack(
    passages: Mapping[str, str],
    splits: Mapping[str, tuple[Mapping[str, str], Sequence[tuple[str, str]]]],
) -> bytes:
    """The archive: passages by id, and the queries and relevant pairs of each split."""
    files = {"collection.tsv": [f"{id_}\t{text}" for id_, text in passages.items()]}
    for split, (queries, pairs) in splits.items():
        files[f"queries.{split}.tsv"] = [f"{id_}\t{text}" for id_, text in queries.items()]
        files[f"qrels.{split}.tsv"] = [f"{query}\t0\t{passage}\t1" for query, passage in pairs]
    files |= {name: ["1\tnever read"] for name in OTHERS}
    return pack_files({name: "".join(f"{line}\n" for line in files[name]) for name in files})


def pack_files(files: Mapping[str, str]) -> bytes:
    """A tar.gz of files by name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


@contextmanager
def published(archives: Mapping[str, bytes]) -> Iterator[FileServer]:
    """A server of archives instead of the published ones, for the collections that name them."""
    original = catalogue._metadata

    def moved(archive: Archive) -> Archive:
        content = archives[archive.file_name]
        url, md5 = server.url(archive.file_name), hashlib.md5(content).hexdigest()
        return msgspec.structs.replace(archive, url=url, md5=md5)

    def metadata(name: str) -> Metadata:
        known = original(name)
        if not {archive.file_name for archive in known.archives} & archives.keys():
            return known
        served = tuple(map(moved, known.archives))
        return msgspec.structs.replace(known, archives=served, counts=Counts())

    with serve() as server:
        server.files |= archives
        try:
            catalogue._metadata = metadata  # type: ignore[assignment]
            yield server
        finally:
            catalogue._metadata = original
