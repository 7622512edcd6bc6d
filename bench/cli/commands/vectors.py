"""``work`` encodes as one of several workers. ``index`` writes a FAISS index to a folder."""

import shutil
import sys
from pathlib import Path

import msgspec

from bench.cli.commands.common import load_model, load_models, make_workspace
from bench.cli.options.commands import IndexOptions, WorkOptions
from bench.cli.terminal import print_json, print_result
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
    """Build an index and copy it to a standalone folder, which is complete or absent.

    Args:
        options: parsed options of the command.
    """
    spec = IndexSpec.parse(options.index)
    if not spec.needs_faiss:
        raise BenchError(
            f"--index {spec} searches the vectors without an index, so there is nothing to write",
            "use --index Flat, which writes the vectors as a FAISS index",
        )
    if options.out.exists():
        raise BenchError(f"{options.out} exists already", "choose another --out, or remove it")
    workspace = make_workspace(options.common, options.hardware, options.allow_mismatch)
    model = load_model(workspace, options.model, options.model_options)
    job = workspace.prepare(workspace.open(options.dataset), model, EvaluationOptions(index=spec))
    announce_encoding([job])
    index_folder = job.retriever.build_index(job.dataset)
    job.dataset.corpus.check()
    manifest = export_index(index_folder, options.out, job.dataset, job.recipe)
    print(
        f"{manifest.documents:,} documents, {size(manifest.bytes)}: {options.out}", file=sys.stderr
    )
    command = f"python {options.out / PROGRAM_FILE} QUERIES.npy 10"
    return print_result(options.common.json, manifest, command)


def export_index(index: IndexFolder, out: Path, dataset: Dataset, recipe: Recipe) -> IndexManifest:
    """Copy an index to a standalone folder, with ids and a search program.

    Args:
        index: index in the cache.
        out: folder to write.
        dataset: collection of the index, with the ids of its documents.
        recipe: recipe of the vectors, stored in the manifest.

    Raises:
        BenchError: the index is damaged, or the folder cannot be written.
    """
    manifest = msgspec.structs.replace(index.checked(), recipe=recipe)
    with replace_folder(out) as unfinished:
        for path in index.folder.iterdir():
            shutil.copyfile(path, unfinished / path.name)
        ids = dataset.corpus.ids.to_pylist()
        (unfinished / IDS_FILE).write_bytes(msgspec.json.encode(ids))
        (unfinished / PROGRAM_FILE).write_text(PROGRAM, encoding="utf-8")
        (unfinished / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return IndexFolder(out).checked()


class EncodedCount(msgspec.Struct, frozen=True):
    """Number of texts of a collection that this worker encoded.

    Attributes:
        collection: name of the collection.
        model: name of the model.
        encoded: number of texts.
    """

    collection: str
    model: str
    encoded: int


def work(options: WorkOptions) -> int:
    """Encode until the vectors of all collections are cached, together with other workers.

    Args:
        options: parsed options of the command.
    """
    workspace = make_workspace(options.common, options.hardware)
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
                f"{dataset.name}, {model.name}: {stored.encoded:,} texts encoded by this worker; "
                f"the vectors of all {len(dataset.corpus):,} documents are in "
                f"{workspace.vectors_dir}",
                file=sys.stderr,
            )
    if options.common.json:
        print_json(done)
    return ExitCode.OK
