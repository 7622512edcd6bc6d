"""The manifest of a bundle, and what a reader may trust in one.

A bundle may be written by hand: a command or a file of settings that names code, or a path, outside
of the bundle is refused before anything is run.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from foundation.errors import BenchError
from foundation.files import resolve_inside, sha256_of_file
from foundation.records import SUFFIX as TOML
from foundation.records import Record, read_json, read_toml
from foundation.sources import SUFFIX

MANIFEST, README, LOCK, REPORT = "bundle.json", "README.md", "requirements.txt", "report.json"
RECORDED, REPORTS, TRAININGS = "recorded/", "reports/", "trainings/"
CODE, CARDS, PRESETS, GRIDS, SUITES = "code/", "cards/", "presets/", "grids/", "suites/"
WEIGHTS, INPUTS = "models/", "inputs/"  # in a replay
COPIED = (RECORDED, CODE, CARDS, PRESETS, GRIDS, SUITES)
COMMANDS = ("run", "score", "judge", "index", "ablate", "pretrain", "finetune", "adapt", "compose")

Hashes = dict[str, str]


class BundledCommand(Record):
    """A command of a bundle.

    Attributes:
        words: what is typed after ``python -m bench``, in the folder of a replay.
        out: folder that it writes.
        makes: records in the bundle that the command makes again.
        on: collections that it reads, as they are typed, with the recorded result on each; "" if
            there is none.
        reads: hashes of the files that are read of each folder of weights or data, by its path.
        published: cards and Hub ids of the models that it reads.
    """

    words: tuple[str, ...]
    out: str
    makes: list[str] = []
    on: dict[str, str] = {}
    reads: dict[str, Hashes] = {}
    published: list[str] = []

    @property
    def typed(self) -> str:
        """The command line."""
        return shlex.join(["python", "-m", "bench", *self.words])


class BundleManifest(Record):
    """Content of ``bundle.json``.

    Attributes:
        bench: version of this program, with its commit.
        commands: commands in the order in which they are typed.
        unrepeated: reason why no command repeats a result, by its folder.
        files: sha256 of each other file.
        schema: version of this record.
    """

    bench: str
    commands: tuple[BundledCommand, ...]
    unrepeated: dict[str, str]
    files: dict[str, str]
    schema: int = 2


def read_bundle(folder: Path) -> BundleManifest:
    """Read the manifest of a bundle, and check every file.

    Raises:
        BenchError: a file is missing or differs from the one that was written, or a command or file
            names code or a path outside of the bundle.
    """
    if not (folder / MANIFEST).is_file():
        raise BenchError(f"{folder} is not a bundle", "Give a folder written by `bench bundle`.")
    hint = "Copy the bundle again."
    manifest = read_json(folder / MANIFEST, BundleManifest, hint)
    for name, sha256 in manifest.files.items():
        path = resolve_inside(folder, name)
        if not path.is_file():
            raise BenchError(f"{path} is missing: the bundle is incomplete", hint)
        if sha256_of_file(path) != sha256:
            raise BenchError(f"{path} was changed after the bundle was written", hint)
    readme = (folder / README).read_text(encoding="utf-8")
    for command in manifest.commands:
        placed = all(path.startswith((WEIGHTS, INPUTS)) for path in command.reads)
        if command.words[0] not in COMMANDS or command.typed not in readme or not placed:
            raise BenchError(f"{folder / MANIFEST} was changed after it was written", hint)
    for where, name in _named_texts(folder, manifest):
        if outside := _find_outside(where, name, manifest.files):
            problem = f"the bundle names {outside}, which is not in its folder {CODE}"
            raise BenchError(problem, "Do not replay it: `bench bundle` writes no such bundle.")
    return manifest


def _named_texts(folder: Path, manifest: BundleManifest) -> Iterator[tuple[str, str]]:
    """Yield each text of commands and settings, after the folder that paths are relative to."""
    for command in manifest.commands:
        yield from (("", text) for text in (*command.words, *command.reads, command.out))
    for name in manifest.files:
        if SUFFIX in name:
            yield "", name
        if name.endswith(TOML):
            where = CARDS if name.startswith(CARDS) else ""
            yield from ((where, text) for text in _texts(read_toml(folder / name, dict[str, Any])))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a table. The words of a grid's ``command`` count as code."""
    if isinstance(value, Mapping):
        yield from (f"{each}{SUFFIX}" for each in value.get("command", ()))
        yield from (text for each in value.values() for text in _texts(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in _texts(each))
    elif isinstance(value, str):
        yield value


def _find_outside(where: str, text: str, files: Mapping[str, str]) -> str:
    """Return the code or path in a text that is not in the bundle, or ""."""
    for part in re.split(r"[+=]", text):
        name, suffix, _ = part.partition(SUFFIX)
        path = normpath(join(where, name + suffix))
        is_outside = len(path) > 1 and f"{path}/".startswith(("/", "../", "~"))
        if is_outside or (suffix and not (path in files and path.startswith(CODE))):
            return part
    return ""
