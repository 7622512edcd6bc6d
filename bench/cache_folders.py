"""Folders of what is kept between commands: downloads, corpora and vectors."""

import hashlib
import os
from pathlib import Path

import platformdirs

from bench.results.location import Place, place_of
from foundation.object_store import RemotePath

VECTORS = "vectors"


def cache_folder(given: str | Place | None = None) -> Path:
    """Folder of downloads, corpora and vectors: as given, else BENCH_CACHE, else the user's.

    A URL is passed over: vectors are shared there, and lie here, too.

    Raises:
        BenchError: a URL that names no store.
    """
    for named in (given, os.environ.get("BENCH_CACHE")):
        if named and isinstance(place := place_of(str(named)), Path):
            return place
    folder: Path = platformdirs.user_cache_path("retrieval-bench")
    return folder


def shared_vectors(given: str | Place | None = None) -> RemotePath | None:
    """URL below which machines share vectors, if the cache given, else BENCH_CACHE, is one.

    Raises:
        BenchError: a URL that names no store.
    """
    named = given or os.environ.get("BENCH_CACHE")
    place = place_of(str(named)) if named else None
    return place / VECTORS if isinstance(place, RemotePath) else None


def vectors_folder(cache_dir: Path, shared: RemotePath | None) -> Path:
    """Folder of vectors in the cache; those that are shared at a URL have a folder of their own."""
    if shared is None:
        return cache_dir / VECTORS
    return cache_dir / "shared" / hashlib.sha256(shared.url.encode()).hexdigest()[:16]
