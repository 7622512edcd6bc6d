"""Names that can be asked for: declared collections and suites, a user's own folders and suites.

Nothing is read at import. Names come from the paths of the TOML files, so that listing them
opens none but the list of suites.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from datasets_cfg.facts import Facts, Suite, Weight
from foundation.errors import BenchError, did_you_mean
from foundation.records import Record, decode_toml

SUITES = "suites.toml"
ENVIRONMENT = "BENCH_DATA"


class _Suites(Record):
    suites: tuple[Suite, ...]


class _OwnSuite(Record):
    """A user's own suite, which is called by the path of its file; see `Suite`."""

    members: tuple[str, ...]
    title: str = ""
    weights: tuple[Weight, ...] = ()


def dataset_names() -> tuple[str, ...]:
    """Names of all declared collections, sorted."""
    return tuple(sorted(_fact_files()))


def suite_names() -> tuple[str, ...]:
    """Names of all suites, in the order declared."""
    return tuple(_suites())


def facts_for(name: str) -> Facts:
    """Facts of a declared collection.

    Raises:
        BenchError: there is none of that name, or its file is not valid.
    """
    if is_suite(name):
        members = ", ".join(suite_for(name).members[:3])
        raise BenchError(
            f"{name} is a suite, and one collection is needed here",
            hint=f"name one of its members: {members}, … (see `python -m bench show {name}`)",
        )
    if name not in _fact_files():
        raise unknown(name, dataset_names())
    return _facts(name)


def declared(name: str) -> str:
    """The text of the file of a declared collection."""
    return _fact_files()[name].read_text(encoding="utf-8")


def is_suite(name: str) -> bool:
    """True for a declared suite, and for the TOML file of a user's own."""
    return name in _suites() or (name.endswith(".toml") and Path(name).expanduser().is_file())


def suite_for(name: str) -> Suite:
    """The declared suite of that name, or the user's own in that file.

    Raises:
        BenchError: there is none, or the file is not valid.
    """
    if name in _suites():
        return _suites()[name]
    if not is_suite(name):
        raise unknown(name, suite_names())
    suite = decode_toml(Path(name).expanduser().read_bytes(), _OwnSuite, name)
    _check_members(suite.members, suite.weights, name)
    return Suite(name, suite.title or name, suite.members, suite.weights)


def _check_members(members: Sequence[str], weights: Sequence[float], path: str) -> None:
    if not members:
        raise BenchError(f"{path}: no members", 'write members = ["beir/scifact", ...]')
    for member in members:
        if members.count(member) > 1:
            raise BenchError(f"{path}: {member} is a member twice", "name it once, with a weight")
        if member.endswith(".toml"):
            raise BenchError(f"{path}: the member {member} is a file", "name its own members")
    if weights and (len(weights) != len(members) or not all(map(math.isfinite, weights))):
        raise BenchError(
            f"{path}: {len(members)} members and the weights {list(weights)}",
            "write a weight for each member, or leave weights out",
        )


def collections_of(suite: str) -> list[str]:
    """Collections of a suite by the names in their results, wherever they lie.

    Raises:
        BenchError: there is no such suite.
    """
    inner = (
        collections_of(member) if member in _suites() else [member]
        for member in suite_for(suite).members
    )
    return list(dict.fromkeys(name for names in inner for name in names))


def own_members(suite: str, data_dir: Path | None = None) -> dict[str, Path]:
    """Folders of the members of a suite that are not declared, where they are found, by member.

    Looked for beside the suite's file, then as `own_folder` does.
    """
    folders: dict[str, Path] = {}
    for member in () if suite in _suites() else collections_of(suite):
        beside = Path(suite).expanduser().parent / member
        folder = beside if beside.is_dir() else own_folder(member, data_dir)
        if folder and member not in _fact_files():
            folders[member] = folder
    return folders


def own_folder(name: str, data_dir: Path | None = None) -> Path | None:
    """Folder of a user's own collection: a path, or one below ``data_dir`` or BENCH_DATA.

    A declared name is none (``./beir`` is always the folder), nor, below those two, the last part
    of one: ``scifact`` would not be scored by the rules of ``beir/scifact``.

    Raises:
        BenchError: ``data_dir`` or BENCH_DATA names no folder.
    """
    if name in _fact_files() or name in _suites():
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name in _last_parts(_fact_files()):
        return None
    below = (root / name for root in roots(data_dir))
    return next((folder for folder in below if folder.is_dir()), None)


def roots(data_dir: Path | None) -> list[Path]:
    """Folders of the user's that hold collections: ``data_dir``, then the one of BENCH_DATA.

    Raises:
        BenchError: one of them is no folder.
    """
    named = {"--data-dir": data_dir, ENVIRONMENT: os.environ.get(ENVIRONMENT)}
    folders = []
    for source, value in named.items():
        if value:
            root = Path(value).expanduser()
            if not root.is_dir():
                raise BenchError(
                    f"{source} names {root}, which is no folder",
                    hint="name the folder that holds the collections, such as DIR in "
                    "DIR/beir/scifact/corpus.jsonl",
                )
            folders.append(root)
    return folders


def expand(names: Iterable[str], data_dir: Path | None = None) -> list[str]:
    """Names of collections in what a user typed: collections, suites and folders, in that order.

    A suite stands for its members, recursively; what occurs twice is listed once. Folders are
    those of `own_folder` and `own_members`.

    Raises:
        BenchError: a name is none of the three.
    """
    members = (member for name in names for member in _members(name, data_dir))
    return list(dict.fromkeys(members))


def unknown(name: str, known: Iterable[str]) -> BenchError:
    """Error for a name that is neither declared nor a folder, with the closest ones."""
    known = tuple(known)
    whole = _last_parts(known)
    if name in whole:
        hint = f"did you mean {whole[name]}?"
    else:
        hint = did_you_mean(name, known, "names: python -m bench list datasets (or suites)")
    return BenchError(f"there is no collection, suite or folder {name!r}", hint=hint)


def _last_parts(names: Iterable[str]) -> dict[str, str]:
    """Whole names by their last part."""
    return {name.rpartition("/")[2]: name for name in names}


def _members(name: str, data_dir: Path | None) -> Iterator[str]:
    if name in _fact_files():
        yield name
    elif is_suite(name):
        own = own_members(name, data_dir)
        for member in suite_for(name).members:
            yield from [str(own[member])] if member in own else _members(member, data_dir)
    elif own_folder(name, data_dir):
        yield name
    else:
        raise unknown(name, (*dataset_names(), *suite_names()))


@cache
def _fact_files() -> dict[str, Traversable]:
    return dict(_toml_files(files("datasets_cfg") / "collections", ""))


def _toml_files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _toml_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml") and entry.name != SUITES:
            yield prefix + entry.name.removesuffix(".toml"), entry


@cache
def _facts(name: str) -> Facts:
    facts = decode_toml(_fact_files()[name].read_bytes(), Facts, f"{name}.toml")
    if facts.name != name:
        raise BenchError(
            f"{name}.toml declares the name {facts.name!r}",
            hint="a collection's name is the path of its file below collections/",
        )
    return facts


@cache
def _suites() -> dict[str, Suite]:
    content = (files("datasets_cfg") / "collections" / SUITES).read_bytes()
    return {suite.name: suite for suite in decode_toml(content, _Suites, SUITES).suites}
