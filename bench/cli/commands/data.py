"""``fetch``, ``verify`` and ``cache``: downloads, checks of data, and disk space."""

import shutil
import sys
import time
from functools import partial

from bench.cli.command_table import OutputOptions
from bench.cli.terminal import format_columns, print_result
from bench.requests.data import CacheRequest, FetchRequest, VerifyRequest
from bench.requests.outcomes import ExitCode
from bench.runner.workspace import VECTORS, load_models, open_workspace
from bench.store.store import measure_usage, select_models
from datasets_cfg.verification import Finding, verify_dataset, write_repaired
from foundation.errors import BenchError
from foundation.files import cache_folder
from foundation.machine import format_size
from reports.evaluation import cache_table, findings


def fetch(request: FetchRequest, output: OutputOptions) -> int:
    """Download collections and models, and build corpora."""
    if not request.names and not request.model:
        raise BenchError(
            "there is nothing to fetch", "Run `python -m bench fetch beir --model retromae`."
        )
    workspace = open_workspace(request)
    rows = []
    for name in workspace.expand_names(request.names):
        dataset = workspace.dataset(name)
        rows.append((name, f"{len(dataset.corpus):,} documents, {len(dataset.queries):,} queries"))
    for model in (loaded.model for loaded in load_models(workspace, request.model, request)):
        folders = [str(each.root) for each in (model.document, model.query) if each]
        rows.append((model.card.name, "; queries: ".join(folders) or "needs no files"))
    document = [{"name": name, "about": about} for name, about in rows]
    return print_result(output.json, document, format_columns(rows))


def verify(request: VerifyRequest, output: OutputOptions) -> int:
    """Print findings about the data of collections.

    Returns:
        The exit code of bad input if there is an error among them.
    """
    by_collection: dict[str, list[Finding]] = {}
    workspace = open_workspace(request)
    names = workspace.expand_names(request.names)
    if request.fix:
        if len(names) > 1:
            raise BenchError(f"--fix copies one collection, not {len(names)}", "Name one of them.")
        changes = write_repaired(partial(workspace.dataset, names[0], request.split), request.fix)
        text = "\n".join(f"  {change}" for change in changes) or "  nothing was changed"
        return print_result(output.json, changes, f"{request.fix}:\n{text}")
    for name in names:
        by_collection[name] = verify_dataset(partial(workspace.dataset, name, request.split))
        if not output.json:
            print(findings(name, by_collection[name]), end="\n\n", flush=True)
    print_result(output.json, by_collection, "")
    every = [finding for found in by_collection.values() for finding in found]
    bad = any(finding.severity == "error" for finding in every)
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def cache(request: CacheRequest, output: OutputOptions) -> int:
    """Print the disk space of vectors by model, after removing the selected ones."""
    store = cache_folder(request.cache_dir) / VECTORS
    removed = []
    if request.prune or request.older_than is not None:
        now = time.time()
        removed = select_models(measure_usage(store), request.prune, request.older_than, now)
    for row in removed:
        shutil.rmtree(store / row.fingerprint)
        what = f"{row.model} ({row.fingerprint[:8]}, {format_size(row.bytes)})"
        print(f"removed {what}", file=sys.stderr)
    rows = measure_usage(store)
    text = cache_table(rows) if rows else f"no vectors in {store}"
    return print_result(output.json, {"stored": rows, "pruned": removed}, text)
