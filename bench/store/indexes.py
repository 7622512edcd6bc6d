"""Approximate indexes on disk, in the vector store or exported to a folder.

A folder holds ``index.faiss``, which FAISS reads, and ``manifest.json`` with the inputs, the cost
and the recall of the index. In the store its name is a hash of all inputs. The checksum is compared
before an index is searched.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from foundation.errors import BenchError
from foundation.files import replace_file, replace_folder, sha256_of_file
from foundation.records import Record, read_json
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.models.card import Recipe

INDEX_FILE, MANIFEST_FILE = "index.faiss", "manifest.json"
INDEXES = "indexes"  # folder next to the vectors of a recipe
REBUILD_HINT = "Write the index again, or choose another folder."


class IndexManifest(Record, kw_only=True):
    """The identity and cost of an index.

    Attributes:
        spec: specification, see `IndexSpec`, with the search parameters that are set in the file.
        recipe: of the model. Document vectors are those of its document side.
        view: the view of stored vectors of every pooling; "" for vectors as stored.
        corpus_sha256: content of the corpus, which has the same order as the rows.
        build_s: seconds of training and adding.
        bytes: size of the index file.
        sha256: checksum of the index file.
        recall: share of the exact top k that was found, by ``recall@k``, by search settings (see
            `bench.evaluation.index_search`).
        tokens_sha256: digest of the token ids of fixed texts, see `ShardManifest`.
        trained_on: ``cuda`` if lists or codebooks were trained on a GPU, else "".
        request: fields of the `index` that exported it; empty in the store, and in older folders.
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
    build_s: float = 0.0
    bytes: int = 0
    sha256: str = ""
    recall: dict[str, dict[str, float]] = {}
    tokens_sha256: str = ""
    trained_on: str = ""
    request: dict[str, Any] = {}
    checksum: str = ""

    @property
    def key(self) -> str:
        """Name of the folder in the store, equal for equal content."""
        side = self.recipe.side("document").fingerprint
        made_from = [side, self.view, self.corpus_sha256, self.spec, self.faiss]
        made_from += filter(None, (self.tokens_sha256, self.trained_on))
        return hashlib.sha256(msgspec.json.encode(made_from)).hexdigest()[:16]


@dataclass(frozen=True)
class IndexFolder:
    """A folder that may hold an index."""

    folder: Path

    def manifest(self) -> IndexManifest:
        """Return the manifest of the index, or raise a `BenchError` if it is missing or damaged."""
        path = self.folder / MANIFEST_FILE
        if not path.is_file():
            hint = "Run `python -m bench index DATASET --model MODEL --index SPEC --out DIR`."
            raise BenchError(f"{self.folder} is not an index: it has no {MANIFEST_FILE}", hint)
        manifest = read_json(path, IndexManifest, REBUILD_HINT)
        if _checksum(msgspec.json.decode(path.read_bytes())) != manifest.checksum:
            raise BenchError(f"{path} is damaged", REBUILD_HINT)
        return manifest

    def checked(self) -> IndexManifest:
        """Return the manifest after comparing the index file with its checksum."""
        manifest, path = self.manifest(), self.folder / INDEX_FILE
        try:
            is_intact = sha256_of_file(path) == manifest.sha256
        except OSError as error:
            raise BenchError(f"{path} cannot be read: {error.strerror}", REBUILD_HINT) from error
        if not is_intact:
            raise BenchError(f"{path} is damaged", REBUILD_HINT)
        return manifest

    def load(self, device: str = "cpu") -> FaissIndex:
        """Load the index for searching on ``device``, or raise a `BenchError` if it is damaged."""
        manifest = self.checked()
        path, spec = self.folder / INDEX_FILE, IndexSpec.parse(manifest.spec)
        return FaissIndex.load(path, spec, manifest.dim, device)

    def keep(self, index: FaissIndex, manifest: IndexManifest) -> None:
        """Write an index and its completed manifest, atomically."""
        with replace_folder(self.folder) as unfinished:
            path = unfinished / INDEX_FILE
            index.save(path)
            size, digest = path.stat().st_size, sha256_of_file(path)
            done = msgspec.structs.replace(manifest, bytes=size, sha256=digest)
            (unfinished / MANIFEST_FILE).write_bytes(encode_manifest(done))

    def add_recall(self, about: str, recall: dict[str, float]) -> None:
        """Add a measured ``recall`` to the manifest under the key ``about``."""
        manifest = self.manifest()
        known = {**manifest.recall, about: recall}
        with replace_file(self.folder / MANIFEST_FILE) as file:
            file.write(encode_manifest(msgspec.structs.replace(manifest, recall=known)))


def encode_manifest(manifest: IndexManifest) -> bytes:
    """Return ``manifest`` with its checksum as JSON."""
    digest = _checksum(msgspec.to_builtins(manifest))
    whole = msgspec.structs.replace(manifest, checksum=digest)
    return msgspec.json.format(msgspec.json.encode(whole), indent=1)


def _checksum(fields: dict[str, Any]) -> str:
    """Return the checksum of a manifest's fields, those of its version."""
    return hashlib.sha256(msgspec.json.encode({**fields, "checksum": ""})).hexdigest()
