"""``work`` encodes as one of several workers. ``index`` writes a FAISS index of a collection.

The index lies in a folder that needs nothing of this program.
"""

import shutil
import sys
from pathlib import Path

import msgspec

from bench.cli.commands.common import load_model, load_models, make_workspace
from bench.cli.options.evaluate import IndexOptions, WorkOptions
from bench.cli.terminal import print_json
from bench.evaluate.cost import announce_encoding
from bench.evaluate.retrieval import EvaluationOptions, encode_documents, run_preflight
from bench.outcomes import ExitCode
from bench.store.indexes import IndexFolder, IndexManifest, encode_manifest
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from foundation.files import replace_folder
from reports.format import size
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.recipe import Recipe

IDS_FILE, PROGRAM_FILE, MANIFEST_FILE = "ids.json", "search.py", "manifest.json"

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


def index(options: IndexOptions) -> int:
    """``index``: the folder is made whole, or not at all."""
    spec = IndexSpec.parse(options.index)
    if not spec.needs_faiss:
        raise BenchError(
            f"{spec} searches the vectors as they are stored: there is no index to write",
            "--index Flat writes the vectors themselves as an index of FAISS",
        )
    if options.out.exists():
        raise BenchError(f"{options.out} is there already", "name another --out, or remove it")
    workspace = make_workspace(options.folder_options, options.hardware, options.allow_mismatch)
    model = load_model(workspace, options.model, options.model_options)
    job = workspace.prepare(workspace.open(options.dataset), model, EvaluationOptions(index=spec))
    announce_encoding([job])
    index_folder = job.retriever.build_index(job.dataset)
    job.dataset.corpus.check()
    manifest = export_index(index_folder, options.out, job.dataset, job.recipe)
    print(
        f"{manifest.documents:,} documents, {size(manifest.bytes)}: {options.out}", file=sys.stderr
    )
    if options.output.json:
        print_json(manifest)
    else:
        print(f"python {options.out / PROGRAM_FILE} QUERIES.npy 10")
    return ExitCode.OK


def export_index(
    index_folder: IndexFolder, out: Path, dataset: Dataset, recipe: Recipe
) -> IndexManifest:
    """Copy an index of the store to a folder of its own, with what it takes to search it.

    Raises:
        BenchError: it is damaged, or the folder cannot be written.
    """
    manifest = msgspec.structs.replace(index_folder.checked(), recipe=recipe)
    with replace_folder(out) as unfinished:
        for path in index_folder.folder.iterdir():
            shutil.copyfile(path, unfinished / path.name)
        ids = dataset.corpus.ids.to_pylist()
        (unfinished / IDS_FILE).write_bytes(msgspec.json.encode(ids))
        (unfinished / PROGRAM_FILE).write_text(PROGRAM, encoding="utf-8")
        (unfinished / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return IndexFolder(out).checked()


class EncodedCount(msgspec.Struct, frozen=True):
    """Number of texts of a collection that this worker encoded."""

    collection: str
    model: str
    encoded: int


def work(options: WorkOptions) -> int:
    """``work``: returns when the vectors of all collections are there."""
    workspace = make_workspace(options.folder_options, options.hardware)
    models = load_models(workspace, options.model, options.model_options)
    done = []
    for name in workspace.expand_names(options.names):
        dataset = workspace.dataset(name)
        for model in models:
            encoder = model.for_dataset(dataset.name).require_encoder()
            run_preflight(dataset, encoder, workspace.store)
            stored = encode_documents(dataset, encoder, workspace.store)
            dataset.corpus.check()
            done.append(EncodedCount(dataset.name, model.name, stored.encoded))
            print(
                f"{dataset.name}, {model.name}: {stored.encoded:,} texts encoded here; the vectors "
                f"of all {len(dataset.corpus):,} documents are in {workspace.vectors_dir}",
                file=sys.stderr,
            )
    if options.output.json:
        print_json(done)
    return ExitCode.OK
