"""Names of collections, suites and folders of the user, and the metadata of each collection.

Metadata is declared in TOML, one file per collection, whose path is the name. Nothing is read at
import.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec

from foundation.errors import BenchError, closest_names
from foundation.records import Record, convert_table, read_toml

COLLECTIONS = Path(__file__).parent / "collections"
SUITES = "suites.toml"
ENVIRONMENT = "BENCH_DATA"
HUB, IR_DATASETS = "hf://", "ir_datasets:"  # prefixes of names
REMOTE = {HUB: "hf/", IR_DATASETS: "ir_datasets/"}  # with those in results

TitleTrack = Literal["title", "no-title", ""]
# the form of an ir_measures name, such as nDCG@10 or AP(rel=2)
Measure = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z]+(\(\w+=\w+\))?(@[1-9][0-9]*)?$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
# part of the name of a file
Split = Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}$)[^/\\\0]+$")]
Weight = Annotated[float, msgspec.Meta(gt=0)]
Md5 = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?$")]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^/]+/.*[^/]$")]

PACKED_SUFFIXES = (".zip", ".tar.gz", ".tgz")


class Archive(Record):
    """A file to download: a zip or tar.gz to unpack, or a plain (or .gz) file to keep as it is.

    Attributes:
        url: address.
        md5: published checksum, 32 hexadecimal digits; "" if none is published.
        folder: folder inside the archive that holds the collection's files.
        files: files to take out of that folder; empty for all.
    """

    url: Url
    md5: Md5 = ""
    folder: str = ""
    files: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Last part of the URL."""
        return PurePosixPath(self.url).name

    @property
    def is_packed(self) -> bool:
        """True for an archive that must be unpacked."""
        return self.url.endswith(PACKED_SUFFIXES)


class Counts(Record):
    """Published counts, each None if nobody published it.

    Attributes:
        documents: documents of the corpus, empty ones included.
        queries: queries with judgements, the denominator of every mean.
        judgements: rows of the qrels.
        dangling_judgements: rows of the qrels whose document is not in the corpus. A difference is
            reported; a difference in any other count means a different collection, which is
            refused.
    """

    documents: Count | None = None
    queries: Count | None = None
    judgements: Count | None = None
    dangling_judgements: Count | None = None


class Metadata(Record):
    """Declared metadata of a collection. Fields that are not declared are those of a plain folder.

    Attributes:
        name: as typed on the command line: ``beir/scifact``.
        layout: layout of its files, see `datasets_cfg.download`.
        title: for people.
        version: release of the data. Results are comparable only under the same version.
        split: judgements that are used.
        main_measure: the measure that stands for the collection, an ir_measures name.
        measures: further measures in the order shown, recall first.
        depth: documents retrieved per query.
        exclude_self: drop the document whose id equals the query id (the BEIR protocol); None if
            undeclared, and then nothing is dropped.
        title_track: "title" or "no-title" if both corpora are in use, else "".
        group: field of the queries' metadata with the same value for queries that depend on each
            other, such as paraphrases; "" if all are independent.
        folder: folder of its files below a data folder; "" if equal to the name.
        public: can be downloaded by anyone.
        instructions: how to obtain it if it is not public.
        archives: files to download.
        hub: dataset of the Hugging Face Hub to download instead, ``OWNER/NAME@COMMIT``.
        counts: published counts.
        licence: as the source states it.
        citation: authors, title and venue.
        homepage: address of the source.
        unverified: metadata that no first-party source confirms.
    """

    name: str
    layout: str
    title: str = ""
    version: str = ""
    split: Split = "test"
    main_measure: Measure = "nDCG@10"
    measures: tuple[Measure, ...] = ("R@100",)
    depth: Annotated[int, msgspec.Meta(ge=1)] = 1000
    exclude_self: bool | None = None
    title_track: TitleTrack = ""
    group: str = ""
    folder: str = ""
    public: bool = True
    instructions: str = ""
    archives: tuple[Archive, ...] = ()
    hub: str = ""
    counts: Counts = Counts()
    licence: str = ""
    citation: str = ""
    homepage: str = ""
    unverified: tuple[str, ...] = ()


class Suite(Record):
    """Collections that are reported together.

    A suite among the members counts once, with its own mean.

    Attributes:
        name: as typed on the command line; for a suite of the user, the path of its file.
        title: name of the mean.
        members: names of collections or suites.
        weights: of the members in the mean, in their order; empty for equal weights.
        mean: False if the main measures differ, so that a mean makes no sense.
    """

    name: str
    title: str
    members: tuple[str, ...]
    weights: tuple[Weight, ...] = ()
    mean: bool = True


def dataset_names() -> tuple[str, ...]:
    """Return the names of all declared collections, sorted."""
    return tuple(sorted(_declaration_files()))


def suite_names() -> tuple[str, ...]:
    """Return the names of all declared suites, in the order of their declaration."""
    return tuple(_suites())


def metadata_for(name: str) -> Metadata:
    """Return the metadata of the declared collection ``name``."""
    if is_suite(name):
        members = ", ".join(suite_for(name).members[:3])
        hint = f"Name one of its members, such as {members}: run `python -m bench show {name}`."
        raise BenchError(f"{name} is a suite, but one collection is needed here", hint)
    if name not in _declaration_files():
        raise unknown_name_error(name, dataset_names())
    return _metadata(name)


def declaration_text(name: str) -> str:
    """Return the text of the file that declares the collection ``name``."""
    return _declaration_files()[name].read_text(encoding="utf-8")


def is_suite(name: str) -> bool:
    """Return whether ``name`` is a declared suite or the TOML file of a suite of the user."""
    return name in _suites() or (name.endswith(".toml") and Path(name).expanduser().is_file())


def suite_for(name: str) -> Suite:
    """Return the declared suite ``name``, or the suite of the user in that file."""
    if name in _suites():
        return _suites()[name]
    if not is_suite(name):
        raise unknown_name_error(name, suite_names())
    table = read_toml(Path(name).expanduser(), dict[str, Any])
    if "name" in table:
        hint = "Delete it: the path of the file is the name, and title is for people."
        raise BenchError(f"{name}: unknown field 'name'", hint)
    suite = convert_table({"title": "", **table, "name": name}, Suite, name)
    _check_members(suite.members, suite.weights, name)
    return suite if suite.title else msgspec.structs.replace(suite, title=name)


def _check_members(members: Sequence[str], weights: Sequence[float], path: str) -> None:
    if not members:
        raise BenchError(f"{path}: no members", 'Write members = ["beir/scifact", ...]')
    for member in members:
        if members.count(member) > 1:
            raise BenchError(f"{path}: {member} is listed twice", "List it once, with a weight.")
        if remote_name(member):
            hint = "Download it and list its folder."
            raise BenchError(f"{path}: {member} is not on this machine", hint)
        if member.endswith(".toml"):
            raise BenchError(f"{path}: {member} is a suite file", "List its members instead.")
    if weights and (len(weights) != len(members) or not all(map(math.isfinite, weights))):
        problem = f"{path}: {len(members)} members, but the weights {list(weights)}"
        raise BenchError(problem, "Write one finite weight for each member, or remove weights.")


def collections_of(name: str) -> list[str]:
    """Return the collections of a suite by their names in results, or a collection itself."""
    if not is_suite(name):
        return [name]
    names = (inner for member in suite_for(name).members for inner in collections_of(member))
    return list(dict.fromkeys(names))


def user_members(suite: str, data_dir: Path | None = None) -> dict[str, Path]:
    """Return the folders of the undeclared members of a suite, by member.

    They are looked up next to the file of the suite, then as `user_folder` does.
    """
    folders: dict[str, Path] = {}
    for member in () if suite in _suites() else collections_of(suite):
        beside = Path(suite).expanduser().parent / member
        folder = beside if beside.is_dir() else user_folder(member, data_dir)
        if folder and member not in _declaration_files():
            folders[member] = folder
    return folders


def remote_name(name: str) -> str:
    """Return the name in results of a collection of the Hub or ir_datasets, "" for other names.

    ``hf://OWNER/NAME@REVISION`` is ``hf/OWNER/NAME``, and ``ir_datasets:ID`` is ``ir_datasets/ID``.
    """
    prefix = next((prefix for prefix in REMOTE if name.startswith(prefix)), None)
    return REMOTE[prefix] + name.removeprefix(prefix).partition("@")[0] if prefix else ""


def user_folder(name: str, data_dir: Path | None = None) -> Path | None:
    """Return the folder of a collection of the user, or None if ``name`` is declared or unknown.

    The name is a path, or a path below ``data_dir`` or BENCH_DATA. The last part of a declared name
    is not accepted, since ``scifact`` would not be scored by the rules of ``beir/scifact``.
    """
    if name in _declaration_files() or name in _suites():
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name in _last_parts(_declaration_files()):
        return None
    below = (root / name for root in data_folders(data_dir))
    return next((folder for folder in below if folder.is_dir()), None)


def data_folders(data_dir: Path | None) -> list[Path]:
    """Return the folders that hold collections: ``data_dir``, then BENCH_DATA."""
    named = {"--data-dir": data_dir, ENVIRONMENT: os.environ.get(ENVIRONMENT)}
    folders = {source: Path(value).expanduser() for source, value in named.items() if value}
    for source, folder in folders.items():
        if not folder.is_dir():
            hint = "Use the folder that holds the collections, such as DIR in DIR/beir/scifact"
            raise BenchError(f"{source} is {folder}, which is not a folder", hint)
    return list(folders.values())


def expand_names(names: Iterable[str], data_dir: Path | None = None) -> list[str]:
    """Return the collections that a user asked for, each once. Suites are replaced by their
    members.
    """
    members = (member for name in names for member in _expand_name(name, data_dir))
    return list(dict.fromkeys(members))


def unknown_name_error(name: str, known: Iterable[str], data_dir: Path | None = None) -> BenchError:
    """Return an error for a name that is not among the ``known`` ones, with close names and
    folders.
    """
    path, known = Path(name).expanduser(), tuple(known)
    if path.is_file():
        return BenchError(f"{name} is a file, not a collection", f"Name its folder, {path.parent}.")
    last_parts = _last_parts(known)
    close = [last_parts[name]] if name in last_parts else closest_names(name, known)
    near = {each.name: str(each) for each in _folders_in(path.parent)}
    near |= {each.name: each.name for root in data_folders(data_dir) for each in _folders_in(root)}
    close += [near[each] for each in closest_names(path.name, near)]
    meant = " or ".join(list(dict.fromkeys(close))[:3])
    hint = f"Did you mean {meant}?" if meant else "Run `python -m bench list datasets`."
    return BenchError(f"there is no collection, suite or folder {name!r}", hint)


def _folders_in(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []


def _last_parts(names: Iterable[str]) -> dict[str, str]:
    """Return full names by their last part."""
    return {name.rpartition("/")[2]: name for name in names}


def _expand_name(name: str, data_dir: Path | None) -> Iterator[str]:
    if name in _declaration_files():
        yield name
    elif is_suite(name):
        paths = user_members(name, data_dir)
        for member in suite_for(name).members:
            yield from [str(paths[member])] if member in paths else _expand_name(member, data_dir)
    elif remote_name(name) or user_folder(name, data_dir):
        yield name
    else:
        raise unknown_name_error(name, (*dataset_names(), *suite_names()), data_dir)


@cache
def _declaration_files() -> dict[str, Path]:
    paths = (path for path in COLLECTIONS.rglob("*.toml") if path.name != SUITES)
    return {path.relative_to(COLLECTIONS).with_suffix("").as_posix(): path for path in paths}


@cache
def _metadata(name: str) -> Metadata:
    return read_toml(_declaration_files()[name], Metadata)


@cache
def _suites() -> dict[str, Suite]:
    suites = read_toml(COLLECTIONS / SUITES, dict[str, tuple[Suite, ...]])["suites"]
    return {suite.name: suite for suite in suites}
