"""Collections of the Hugging Face Hub (``hf://OWNER/NAME``) and ir_datasets (``ir_datasets:X``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets_cfg.catalogue import HUB, IR_DATASETS, remote_name
from datasets_cfg.readers.beir import write_collection
from datasets_cfg.readers.reader import Document, Reader, assume
from foundation.errors import BenchError, first_line, import_package
from foundation.files import replace_folder

_IR_HINT = "see https://ir-datasets.com for ids and instructions"


def fetch_remote(name: str, cache_dir: Path, download: bool) -> Path:
    """Return the folder of the collection ``name``, after downloading it if necessary."""
    if name.startswith(HUB):
        return fetch_snapshot(name.removeprefix(HUB), Reader.patterns, download, name)
    folder = cache_dir / "data" / remote_name(name).replace("/", "--")  # an id may begin another
    if not folder.is_dir():
        if not download:
            problem = f"{name} is not in {folder}, and downloads are off"
            raise BenchError(problem, f"run `python -m bench fetch {name}` on a connected machine")
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
            f"run `python -m bench fetch {name}` on a connected machine and copy its "
            "cache (HF_HOME), or give a local clone",
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
            raise BenchError(f"it has no {' and no '.join(missing)}", "choose one of its subsets")
        facts = {"name": remote_name(IR_DATASETS + id_), "layout": "beir", "split": "test"}
        with replace_folder(folder) as unfinished:
            write_collection(
                unfinished,
                map(_document, dataset.docs_iter()),
                ((each.query_id, each.default_text()) for each in dataset.queries_iter()),
                ((each.query_id, each.doc_id, each.relevance) for each in dataset.qrels_iter()),
                {**facts, "version": f"ir_datasets {package.__version__}"},
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
