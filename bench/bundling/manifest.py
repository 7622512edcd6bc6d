"""The manifest of a bundle, and the code that its commands run."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from foundation.files import resolve_inside, sha256_of_file
from foundation.records import SUFFIX as TOML
from foundation.records import Record, read_json, read_toml
from foundation.sources import SUFFIX

MANIFEST, README, LOCK, REPORT = "bundle.json", "README.md", "requirements.txt", "report.json"
RECORDED, REPORTS, TRAININGS = "recorded/", "reports/", "trainings/"
CODE, CARDS, PRESETS, GRIDS, SUITES = "code/", "cards/", "presets/", "grids/", "suites/"
PROGRAM = "code/program/"  # files that keep their paths in a replay
WEIGHTS, INPUTS = "models/", "inputs/"  # in a replay
COPIED = (RECORDED, CODE, CARDS, PRESETS, GRIDS, SUITES)
TRUST = "--trust-code"

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
        programs: programs that it runs, with libraries of their own.
        not_copied: modules and files that it needs, and that are neither in the bundle nor looked
            for by their hashes.
    """

    words: tuple[str, ...]
    out: str
    makes: list[str] = []
    on: dict[str, str] = {}
    reads: dict[str, Hashes] = {}
    published: list[str] = []
    programs: list[str] = []
    not_copied: list[str] = []

    @property
    def typed(self) -> str:
        """The command line."""
        return shlex.join(["python", "-m", "bench", *self.words])

    def describe_not_copied(self) -> Iterator[str]:
        """Yield what is neither in the bundle nor looked for by its hash, a sentence each."""
        if self.programs:
            yield (
                f"not in the bundle: {', '.join(dict.fromkeys(self.programs))} with its libraries, "
                "and files that it reads and that neither its command, a setting nor inputs names"
            )
        yield from (f"not in the bundle: {each}" for each in dict.fromkeys(self.not_copied))


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
        BenchError: a file is missing or differs from the one that was written.
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
    return manifest


def find_code(folder: Path, manifest: BundleManifest) -> list[str]:
    """Return the code that a bundle runs, and paths out of its folder, wherever they are named."""
    found = [name for name in manifest.files if name.startswith(CODE) or SUFFIX in name]
    for command in manifest.commands:
        found += (word for word in command.words if word == TRUST or _leads_out(word))
        found += _code_in(list(command.words))
    for name in manifest.files:
        if name.endswith(TOML):
            found += _code_in(read_toml(folder / name, dict[str, Any]))
    return list(dict.fromkeys(found))


def _leads_out(word: str) -> bool:
    """Return True if a word of a command has a path that is not below the folder of a replay."""
    path = word.rpartition("=")[2]
    return path.startswith(("/", "~")) or ".." in Path(path).parts


def _code_in(value: Any) -> Iterator[str]:
    """Yield the files of code in texts and tables, and the commands of grids."""
    if isinstance(value, Mapping):
        if words := value.get("command"):
            yield shlex.join(map(str, words))
        value = list(value.values())
    if isinstance(value, list):
        yield from (code for each in value for code in _code_in(each))
    elif isinstance(value, str):
        yield from (part for part in re.split(r"[+=]", value) if SUFFIX in part)
