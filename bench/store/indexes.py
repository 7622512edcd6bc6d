"""Approximate indexes that were built: in the store beside their vectors, or exported to a folder.

A folder holds ``index.faiss``, which FAISS reads, and ``manifest.json``: what it is of, what it
cost, and how much of the exact rankings it found. In the store it is named after all that decides
its content. Nothing is searched before it was compared with its checksum.
"""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from foundation.errors import BenchError
from foundation.files import replace_file, replace_folder, sha256_of_file
from foundation.records import Record, read_json
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.models.recipe import Recipe

INDEX_FILE, MANIFEST_FILE = "index.faiss", "manifest.json"
INDEXES = "indexes"  # folder beside the vectors of a recipe
REBUILD_HINT = "write the index again, or name another folder"

logger = logging.getLogger(__name__)


class IndexManifest(Record, kw_only=True):
    """The identity of an index.

    Attributes:
        spec: as `IndexSpec` writes it; parameters of the search are set in the file, too.
        recipe: of the model. Vectors of documents are those of its document side.
        view: what was made of stored vectors of every pooling; "" for vectors as they are.
        corpus_sha256: content of the corpus, whose order the rows have.
        build_s: seconds of training and adding.
        sha256: of the file of the index, which has so many ``bytes``.
        recall: share of the exact top k that was found, by ``recall@k``; by what was searched, see
            `bench.evaluate.index_search`.
        checksum: sha256 of all other fields.
    """

    schema: int = 1
    spec: str
    recipe: Recipe
    view: str
    collection: str
    version: str
    corpus_sha256: str
    documents: int
    dim: int
    faiss: str
    build_s: float
    bytes: int
    sha256: str
    recall: dict[str, dict[str, float]] = {}
    checksum: str = ""

    @property
    def key(self) -> str:
        """Name of the folder in the store: equal where the content is."""
        side = self.recipe.side("document").fingerprint
        facts = (side, self.view, self.corpus_sha256, self.spec, self.faiss)
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]


@dataclass(frozen=True)
class IndexFolder:
    """An index on disk, if it is there."""

    folder: Path

    def manifest(self) -> IndexManifest:
        """The manifest of the index.

        Raises:
            BenchError: there is none, or it is damaged.
        """
        path = self.folder / MANIFEST_FILE
        if not path.is_file():
            raise BenchError(
                f"{self.folder} holds no index: there is no {MANIFEST_FILE}",
                "python -m bench index DATASET --model MODEL --index SPEC --out DIR",
            )
        manifest = read_json(path, IndexManifest, REBUILD_HINT)
        if _checksum(manifest) != manifest.checksum:
            raise BenchError(f"{path} is not as it was written", REBUILD_HINT)
        return manifest

    def checked(self) -> IndexManifest:
        """The manifest, after the file of the index was compared with it.

        Raises:
            BenchError: there is no index, or it is not what was written.
        """
        manifest, path = self.manifest(), self.folder / INDEX_FILE
        try:
            whole = sha256_of_file(path) == manifest.sha256
        except OSError as error:
            raise BenchError(f"{path} cannot be read: {error.strerror}", REBUILD_HINT) from error
        if not whole:
            raise BenchError(f"{path} is not the file that was written", REBUILD_HINT)
        return manifest

    def load(self, device: str = "cpu") -> FaissIndex:
        """The index, ready to be searched.

        Raises:
            BenchError: it is damaged, or not what its manifest says.
        """
        manifest = self.checked()
        path, spec = self.folder / INDEX_FILE, IndexSpec.parse(manifest.spec)
        return FaissIndex.load(path, spec, manifest.dim, device)

    def load_if_intact(self, device: str) -> FaissIndex | None:
        """Load the index of the store; None if it is not there, or with a warning if damaged."""
        if not self.folder.is_dir():
            return None
        try:
            if self.manifest().key != self.folder.name:
                raise BenchError(f"{self.folder} is another index than its name says")
            return self.load(device)
        except BenchError as damage:
            logger.warning("%s: it is built again", damage)
            return None

    def keep(self, index: FaissIndex, manifest: IndexManifest) -> None:
        """Write an index with its manifest, which is completed; all files or none.

        Raises:
            BenchError: the system refuses to write.
        """
        with replace_folder(self.folder) as unfinished:
            path = unfinished / INDEX_FILE
            index.save(path)
            digest = sha256_of_file(path)
            size = path.stat().st_size
            done = msgspec.structs.replace(manifest, bytes=size, sha256=digest)
            (unfinished / MANIFEST_FILE).write_bytes(encode_manifest(done))

    def add_recall(self, about: str, recall: dict[str, float]) -> None:
        """Add to the manifest how much was found of some exact rankings."""
        manifest = self.manifest()
        known = {**manifest.recall, about: recall}
        with replace_file(self.folder / MANIFEST_FILE) as file:
            file.write(encode_manifest(msgspec.structs.replace(manifest, recall=known)))


def encode_manifest(manifest: IndexManifest) -> bytes:
    """The manifest as it is on disk, with its checksum."""
    whole = msgspec.structs.replace(manifest, checksum=_checksum(manifest))
    return msgspec.json.format(msgspec.json.encode(whole), indent=1)


def _checksum(manifest: IndexManifest) -> str:
    content = msgspec.json.encode(msgspec.structs.replace(manifest, checksum=""))
    return hashlib.sha256(content).hexdigest()
