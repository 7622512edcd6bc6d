"""Options of the commands about names and files: ``list``, ``show``, ``fetch``, ``verify``, ``cache``."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from bench.cli.options.shared import (
    FolderOptions,
    LocalPath,
    ModelOptions,
    Names,
    NonNegativeInt,
    OptionConditions,
    OutputOptions,
    SeveralValues,
)

Listed = Literal["models", "datasets", "suites", "measures", "indexes", "presets", "grids"]
ModelGroup = Literal["ready", "download", "pretrained", "unpublished"]


@dataclass(frozen=True)
class ListOptions:
    """List models, datasets, suites, measures, indexes, presets or grids.

    Models come in groups: ready (on this machine), download, pretrained (not fine-tuned) and
    unpublished. A question mark after a licence means that no first-party source confirms it.

    Attributes:
        what: Kind of names to list.
        match: List only lines whose name, description or licence contains this text. Letter case
            is ignored.
        group: List only models of these groups.

    Examples:
        python -m bench list models --group ready
        python -m bench list models --match apache
        python -m bench list datasets --match cqadupstack
        python -m bench list presets
    """

    only_if: ClassVar[OptionConditions] = {"group": {"what": "models"}}

    what: Listed
    _: KW_ONLY
    match: str = ""
    group: Annotated[tuple[ModelGroup, ...], SeveralValues] = ()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ShowOptions:
    """Show the declaration of a model, collection, suite, preset or grid, or a stored result.

    Attributes:
        name: Name (see `list`), TOML file of your own suite, or folder of a result.

    Examples:
        python -m bench show retromae
        python -m bench show beir/scifact
        python -m bench show my-suite.toml
    """

    name: str
    _: KW_ONLY
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class FetchOptions:
    """Download collections and models, and build corpora, for later use offline.

    Attributes:
        names: Collections or suites (see `list datasets` and `list suites`).
        model: Models: names (see `list models`), card files, folders or Hub ids.

    Examples:
        python -m bench fetch beir --model retromae
    """

    only_if: ClassVar[OptionConditions] = {
        name: {"model": True} for name in ("like", "adapter", "dtype", "set", "trust_code")
    }

    names: tuple[str, ...] = ()
    _: KW_ONLY
    model: Names = ()
    model_options: ModelOptions = ModelOptions()
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class VerifyOptions:
    """Check the data of collections: counts, duplicate ids, missing documents.

    Attributes:
        names: Collections, suites or folders (see `list datasets` and `list suites`).
        split: Split whose judgements are checked. Default: the collection's.

    Examples:
        python -m bench verify beir/scifact
    """

    names: tuple[str, ...]
    _: KW_ONLY
    split: str | None = None
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class CacheOptions:
    """Show the disk space of cached vectors by model, verify them, or remove them.

    Attributes:
        verify: Read all files and list damaged ones. Exit code 2 if there are any.
        prune: Remove the vectors of these models (names, or prefixes of fingerprints).
        older_than: Remove vectors that have not been used for this many days, of the models of
            --prune or of all models.
        dry_run: Show what --prune and --older-than would remove; remove nothing.
        cache_dir: Folder of the cache. Default: $BENCH_CACHE, then the user's cache folder.

    Examples:
        python -m bench cache --verify
        python -m bench cache --prune retromae --dry-run
        python -m bench cache --older-than 90
    """

    _: KW_ONLY
    verify: bool = False
    prune: Names = ()
    older_than: Annotated[NonNegativeInt | None, Parameter(metavar="DAYS")] = None
    dry_run: bool = False
    cache_dir: LocalPath | None = None
    output: OutputOptions = OutputOptions()
