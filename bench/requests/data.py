"""Requests about data and names: `list`, `show`, `fetch`, `verify` and `cache`."""

from pathlib import Path
from typing import Literal

from attrs import field, frozen

from bench.requests.fields import (
    FolderFields,
    ModelFields,
    Request,
    to_names,
    to_optional_path,
    to_paths,
)
from foundation.files import local_path

Listed = Literal["models", "datasets", "suites", "measures", "indexes", "presets", "grids"]


@frozen(kw_only=True, slots=False)
class ListRequest(Request):
    """List models, datasets, suites, measures, indexes, presets or grids.

    Models come in groups: ready (on this machine), download, pretrained (not fine-tuned) and
    unpublished. A question mark after a licence means that no first-party source confirms it.

    Attributes:
        what: Kind of names to list.
        match: List only lines whose name, group, description or licence contains this text. Letter
            case is ignored.

    Examples:
        python -m bench list models --match ready
        python -m bench list models --match apache
        python -m bench list datasets --match cqadupstack
        python -m bench list presets
    """

    what: Listed = field(kw_only=False)
    match: str = ""


@frozen(kw_only=True, slots=False)
class ShowRequest(Request):
    """Show the declaration of a model, collection, suite, preset or grid, or a stored result.

    Attributes:
        name: Name (see `list`), TOML file of your own suite, or folder of a result.

    Examples:
        python -m bench show retromae
        python -m bench show beir/scifact
        python -m bench show my-suite.toml
    """

    name: str = field(kw_only=False)


@frozen(kw_only=True, slots=False)
class FetchRequest(ModelFields, FolderFields):
    """Download collections and models, and build corpora, for later use offline.

    Attributes:
        names: Collections or suites (see `list datasets` and `list suites`).
        model: Models: names (see `list models`), card files, folders or Hub ids.

    Examples:
        python -m bench fetch beir --model retromae
    """

    names: tuple[str, ...] = field(kw_only=False, default=(), converter=to_names)
    model: tuple[str, ...] = field(default=(), converter=to_names)


@frozen(kw_only=True, slots=False)
class VerifyRequest(FolderFields):
    """Check the data of collections: counts, duplicate ids, missing documents, cut texts.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`).
        split: Split whose judgements are checked. Default: the collection's.
        fix: Write a repaired copy in BEIR's layout into this new folder, with a list of what was
            changed (one collection only).

    Examples:
        python -m bench verify beir/scifact
        python -m bench verify path/to/collection --fix path/to/copy
    """

    names: tuple[str, ...] = field(kw_only=False, converter=to_names)
    split: str | None = None
    fix: Path | None = field(default=None, converter=to_optional_path)


@frozen(kw_only=True, slots=False)
class CacheRequest(Request):
    """Show the disk space of cached vectors by model, or remove them.

    Attributes:
        prune: Remove the vectors of these models (names, or prefixes of fingerprints).
        older_than: Remove vectors that have not been used for this many days, of the models of
            ``prune`` or of all models.
        cache_dir: Folder of the cache. Default: $BENCH_CACHE, then the user's cache folder.

    Examples:
        python -m bench cache
        python -m bench cache --prune retromae
        python -m bench cache --older-than 90
    """

    prune: tuple[str, ...] = field(default=(), converter=to_names)
    older_than: int | None = None
    cache_dir: Path | None = field(default=None, converter=to_optional_path)


@frozen(kw_only=True, slots=False)
class BundleRequest(FolderFields):
    """Write a folder with which a reader can repeat results: commands, records, cards and code.

    Run it in the folder in which the results were made: paths in their records are those that were
    typed there. Data and weights are not copied, only their hashes and sources. What no command can
    repeat, such as the result of a Python object, is listed with the reason.

    Attributes:
        results: Folders of results or ablations, or names of models with results below `results`.
        out: New folder.

    Examples:
        python -m bench bundle results --out paper
        python -m bench bundle minilm bm25 ablations/masks --out paper
    """

    results: tuple[str, ...] = field(kw_only=False, converter=to_names)
    out: Path = field(converter=local_path)


@frozen(kw_only=True, slots=False)
class ReplayRequest(FolderFields):
    """Repeat the commands of a bundle and compare the scores of each query with the recorded ones.

    Weights that are not found by their hashes are trained again, if the bundle has the command.
    Repeat the command to continue. Exit codes: 0 repeated, 4 something is missing or failed, 5
    a score differs, 2 bad input.

    Attributes:
        bundle: Folder written by `bundle`.
        out: Folder of the repeated results and weights.
        search: Folders in which weights are looked for by their hashes.
        trust_code: Allow the code and the programs that the bundle names.
        dry_run: Say what would be run and what is missing; run nothing.

    Examples:
        python -m bench replay paper --dry-run
        python -m bench replay paper --search path/to/weights --data-dir path/to/data
    """

    bundle: Path = field(kw_only=False, converter=local_path)
    out: Path = field(default=Path("replayed"), converter=local_path)
    search: tuple[Path, ...] = field(default=(), converter=to_paths)
    trust_code: bool = False
    dry_run: bool = False
