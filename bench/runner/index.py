"""A FAISS index of a collection in a standalone folder, which needs nothing of this program."""

import shutil
from pathlib import Path

import msgspec

from bench.evaluation.collection_search import EvaluationOptions
from bench.evaluation.cost import announce_encoding
from bench.requests.evaluating import IndexRequest
from bench.runner.workspace import load_models, open_workspace
from bench.store.indexes import MANIFEST_FILE, IndexFolder, IndexManifest, encode_manifest
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from foundation.files import replace_folder
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.recipe import Recipe

IDS_FILE, PROGRAM_FILE = "ids.json", "search.py"

PROGRAM = '''\
"""python search.py QUERIES.npy [K]: vectors of queries (q, dim), as manifest.json's recipe says."""
import json, pathlib, sys
import faiss, numpy
folder = pathlib.Path(__file__).parent
index = faiss.read_index(str(folder / "index.faiss"))
ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
queries = numpy.load(sys.argv[1]).astype("float32")
for query, (scores, rows) in enumerate(zip(*index.search(queries, int((*sys.argv, 10)[2])))):
    for score, row in zip(scores, rows):
        if row >= 0:  # FAISS fills up with -1 where it found fewer than K
            print(json.dumps([query, ids[row], float(score)]))
'''


def index(request: IndexRequest) -> IndexManifest:
    """Build an index and copy it to a standalone folder, which is complete or absent.

    Raises:
        BenchError: wrong input, the folder exists, or it cannot be written.
    """
    spec = IndexSpec.parse(request.index)
    if not spec.needs_faiss:
        raise BenchError(
            f"--index {spec} searches the vectors without an index, so there is nothing to write",
            "use --index Flat, which writes the vectors as a FAISS index",
        )
    if request.out.exists():
        raise BenchError(f"{request.out} exists already", "choose another --out, or remove it")
    workspace = open_workspace(request)
    (model,) = load_models(workspace, (request.model,), request)
    options = EvaluationOptions(index=spec)
    job = workspace.prepare(workspace.open(request.dataset), model, options)
    announce_encoding([job])
    index_folder = job.retriever.build_index(job.dataset)
    job.dataset.corpus.check()
    return _export_index(index_folder, request.out, job.dataset, job.recipe)


def _export_index(index: IndexFolder, out: Path, dataset: Dataset, recipe: Recipe) -> IndexManifest:
    """Copy an index to a standalone folder, with ids and a search program."""
    manifest = msgspec.structs.replace(index.checked(), recipe=recipe)
    with replace_folder(out) as unfinished:
        for path in index.folder.iterdir():
            shutil.copyfile(path, unfinished / path.name)
        ids = dataset.corpus.ids.to_pylist()
        (unfinished / IDS_FILE).write_bytes(msgspec.json.encode(ids))
        (unfinished / PROGRAM_FILE).write_text(PROGRAM, encoding="utf-8")
        (unfinished / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return IndexFolder(out).checked()
