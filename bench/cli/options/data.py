"""Options of the commands about what there is and where it lies."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

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
    """List names of one kind, with a line about each.

    Models are in groups: ready on this machine, those that need a download, pre-trained only, and
    not published. A licence with a question mark was not confirmed in a first-party source.

    Attributes:
        what: Kind of names to list.
        match: Only names, descriptions and licences that contain this text, in any letter case.
        group: Only models of these groups.

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
    """Show what is declared of a model, collection, suite, preset or grid, or recorded of a result.

    Attributes:
        name: Name of `list`, TOML file of a suite of your own, or folder of a result.

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
    """Download all that an offline machine needs: collections, models, built corpora.

    Attributes:
        names: Collections or suites.
        model: Names of `list models`, card files, folders or Hub ids.

    Examples:
        python -m bench fetch beir --model retromae
    """

    names: tuple[str, ...] = ()
    _: KW_ONLY
    model: Names = ()
    model_options: ModelOptions = ModelOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class VerifyOptions:
    """Check the data of collections: counts, ids that occur twice, gaps.

    Attributes:
        names: Collections, suites or folders.
        split: Split whose judgements are checked. Default: the collection's.

    Examples:
        python -m bench verify beir/scifact
    """

    names: tuple[str, ...]
    _: KW_ONLY
    split: str | None = None
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class CacheOptions:
    """Show the disk space of stored vectors by model; verify or remove them.

    Attributes:
        verify: Read everything and name what is damaged; exit code 2 where anything is.
        prune: Remove the vectors of these models: names, or first characters of fingerprints.
        older_than: Remove vectors that were not used for this many days: of the models of
            --prune, or of all.
        dry_run: Only show what would be removed.
        cache_dir: Folder of the cache. Default: $BENCH_CACHE, then the user's cache folder.

    Examples:
        python -m bench cache --verify
        python -m bench cache --prune retromae --dry-run
        python -m bench cache --older-than 90
    """

    _: KW_ONLY
    verify: bool = False
    prune: Names = ()
    older_than: NonNegativeInt | None = None
    dry_run: bool = False
    cache_dir: LocalPath | None = None
    output: OutputOptions = OutputOptions()
