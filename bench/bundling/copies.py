"""Copies of what the commands of a bundle name: cards, presets, grids, suites and code.

A path is what a field says it is, since a folder may have the name of a preset or of a measure:
collections are typed below a data folder, weights and files of data get a place in the folder of a
replay, and are listed by their hashes. Files of a grid's ``command`` keep their places, where its
program may look for them.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.bundling.manifest import (
    CARDS,
    CODE,
    GRIDS,
    INPUTS,
    PRESETS,
    PROGRAM,
    SUITES,
    WEIGHTS,
    BundledCommand,
    Hashes,
)
from bench.experiments.command_stage import input_files
from bench.experiments.grid import TomlTable
from datasets_cfg.catalogue import data_folders, is_suite, user_folder
from datasets_cfg.download import is_training_data
from foundation.errors import BenchError
from foundation.files import sha256_of_file
from foundation.records import SUFFIX as TOML
from foundation.records import read_json, read_toml
from foundation.sources import SUFFIX, find_own_files
from retrievers.models.adapter_files import ADAPTER_FOLDER
from retrievers.models.card import CARD_FILE, card_names, format_toml
from retrievers.models.names import PYTHON_FILE, READY_VECTORS, TRAINING_FILE, is_url
from retrievers.training.engine.identity import TrainingRecord

COLLECTIONS = {"names", "dataset", "on", "held_out", "members"}
MODELS = {"model", "models", "start", "teacher", "adapter", "adapters", "like", "path"}
MODELS |= {"checkpoint", "query_checkpoint", "encoder", "reranker"}
PLUGINS = {"objective", "method"}  # of this program by name, or a file
SETTINGS = {"preset": PRESETS, "grid": GRIDS}
HASH_DIGITS = 8
SCRIPTS = (SUFFIX, ".sh")
CONFIGURATION = (TOML, ".yaml", ".yml", ".json", ".ini", ".cfg")
MOST_BYTES = 1 << 20  # of a file of configuration: a larger one is data


@dataclass
class Copies:
    """Copies in the ``folder`` of a bundle, where collections are below ``data_dir``.

    Attributes:
        files: hashes of files of the evaluated model, by name.
        command: the present command, without its words.
        placed: path in a replay of each folder that is not copied.
    """

    folder: Path
    data_dir: Path | None
    files: Mapping[str, str] = field(default_factory=dict)
    command: BundledCommand = field(default_factory=lambda: BundledCommand((), ""))
    placed: dict[Path, str] = field(default_factory=dict)

    def relocate(self, name: str, value: Any, base: Path | None = None) -> Any:
        """Return the value of the field ``name`` in the bundle, of a request or of a file.

        ``base`` is the folder of a card or suite, to which its paths are relative.
        """
        if isinstance(value, Mapping):
            if {"field", "values"} <= value.keys():  # an axis of a grid
                return {**value, "values": self.relocate(value["field"], value["values"])}
            return {key: self.relocate(f"{name}.{key}", each, base) for key, each in value.items()}
        if isinstance(value, list | tuple):
            if name.endswith(".command") and isinstance(value[0], str):
                return [_place_program(value[0]), *value[1:]]
            return [self.relocate(name, each, base) for each in value]
        parts = name.split(".")
        last = parts[-2] if parts[-1] == "name" and len(parts) > 1 else parts[-1]
        if not isinstance(value, str) or not value:
            return value
        if last in COLLECTIONS:
            return self._place_collection(value, base)
        if last in SETTINGS and value.endswith(TOML) and Path(value).is_file():
            return self.copy_settings(Path(value), SETTINGS[last])
        if last in MODELS or (last in PLUGINS and PYTHON_FILE.fullmatch(value)):
            return self._place_model(last, value, base)
        return self.list_file(Path(value)) if last == "negatives" else value

    def copy(self, source: Path, target: str) -> str:
        """Copy a file into the bundle with its permissions, and return its path there."""
        if not source.is_file():
            raise BenchError(f"{source} is missing")
        self._write(target, source.read_bytes())
        shutil.copymode(source, self.folder / target)
        return target

    def _write(self, target: str, content: bytes) -> str:
        path = self.folder / target
        if path.exists() and path.read_bytes() != content:
            raise BenchError(f"two files are called {target}", "Rename one of them.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return target

    def copy_settings(self, path: Path, folder: str) -> str:
        """Copy a TOML file with what it names, whose paths become those of the bundle."""
        table = read_toml(path, dict[str, Any])
        base = path.parent if folder in (CARDS, SUITES) else None
        moved = {name: self.relocate(name, value, base) for name, value in table.items()}
        content = path.read_bytes() if moved == table else format_toml(moved).encode()
        return self._write(f"{folder}{path.name}", content)

    def place(self, path: Path, place: str) -> str:
        """Return the path in a replay of a folder that is not copied."""
        self.placed[path] = place
        if any(other == place and where != path for where, other in self.placed.items()):
            raise BenchError(f"two folders are called {place}", "Rename one of them.")
        return place

    def list_file(self, path: Path) -> str:
        """List a file of data, and return its path in a replay."""
        digest = sha256_of_file(path)
        place = f"{INPUTS}{digest[:HASH_DIGITS]}"
        self.command.reads[place] = {path.name: digest}
        return f"{place}/{path.name}"

    def _place_collection(self, typed: str, suite: Path | None) -> str:
        """Return what to type for a collection, a suite or a file of texts."""
        path = Path(typed).expanduser()
        if is_training_data(typed):
            if path.is_file():
                return self.list_file(path)
            raise BenchError(f"{typed} is a folder of training files", "Give its files.")
        if typed.endswith(TOML) and is_suite(typed):
            return self.copy_settings(path, SUITES)
        beside = suite and suite / typed
        folder = beside if beside and beside.is_dir() else user_folder(typed, self.data_dir)
        if folder:
            roots = [root.resolve() for root in (*data_folders(self.data_dir), Path.cwd())]
            below = (root for root in roots if folder.resolve().is_relative_to(root))
            root = next(below, folder.resolve().parent)
            typed = folder.resolve().relative_to(root).as_posix()
        self.command.on.setdefault(typed, "")
        return typed

    def _place_model(self, role: str, name: str, card: Path | None) -> str:
        """Return what to type for a model, whose files are copied or listed."""
        found = READY_VECTORS.fullmatch(name) or PYTHON_FILE.fullmatch(name)
        file = found[1] if found else name
        path = (card or Path()) / Path(file).expanduser()
        is_file = path.exists() and (card or name not in card_names())
        if not is_file and "+" in name and not is_url(name):
            return "+".join(self._place_model(role, part, card) for part in name.split("+"))
        if not is_file and (found or name.endswith(TOML) or path.is_absolute()):
            raise BenchError(f"{path} is missing", "Run `bundle` where the commands were typed.")
        if not is_file:
            if role != "like" and not is_url(name):
                self.command.published.append(name)
            return name
        placed = self._place_path(path)
        return name.replace(file, f"../{placed}" if card else placed, 1)

    def _place_path(self, path: Path) -> str:
        """Return the path in the bundle of a file or folder of a model."""
        if path.is_dir():
            return self.list_weights(path.resolve())
        if path.suffix == TOML:
            return self.copy_settings(path, CARDS)
        if not PYTHON_FILE.fullmatch(path.name):
            return self.list_file(path)
        place = f"{CODE}{sha256_of_file(path)[:HASH_DIGITS]}"
        files, _ = find_own_files(path)
        self._note_modules(path, files)
        for each in files:
            if path.name in self.files and sha256_of_file(each) not in self.files.values():
                raise BenchError(f"{each} has changed since it was evaluated", "Evaluate it again.")
            self.copy(each, f"{place}/{each.relative_to(path.parent)}")
        return f"{place}/{path.name}"

    def _note_modules(self, path: Path, copied: Iterable[Path]) -> None:
        """Note the modules that a file of code imports and that are not among the copied files."""
        known = {each.resolve() for each in copied}
        for name, other in find_own_files(path)[1].items():
            if other.resolve() not in known:
                self.command.not_copied.append(
                    f"the module {name} ({other}), which {path.name} imports from another folder"
                )

    def copy_program(self, settings: TomlTable) -> None:
        """Copy scripts and configuration that the ``command`` of a stage names, and list data."""
        program = settings["command"][0]
        files = list(input_files({**settings, "start": "", "like": ""}))  # models
        if Path(program).is_absolute() or not Path(program).is_file():
            self.command.programs.append(_place_program(program))
        for path in files:
            if path.is_absolute() or ".." in path.parts:
                if str(path) != program:
                    self.command.not_copied.append(f"{path}, which has no path in this folder")
            elif not _is_code(path):
                hashes = self.command.reads.setdefault(path.parent.as_posix(), {})
                hashes[path.name] = sha256_of_file(path)
            else:
                self.copy(path, f"{PROGRAM}{path.as_posix()}")
                if path.suffix == SUFFIX:
                    self._note_modules(path, files)

    def list_weights(self, path: Path) -> str:
        """List the files of a folder of weights, and return its path in a replay."""
        _, _, home = read_training(path)
        place = self.place(path, f"{WEIGHTS}{path.relative_to(home.parent)}")
        inner = {f"{ADAPTER_FOLDER}/{name}": sha256 for name, sha256 in self.files.items()}
        known = hash_files(path, {**self.files, **inner})
        if known.items() <= {**self.files, **inner}.items() and known:
            self.command.reads[place] = known | hash_files(path, [CARD_FILE])
        else:  # a member of a model, or a start
            names = (each.name for each in path.iterdir() if each.name != TRAINING_FILE)
            self.command.reads[place] = hash_files(path, names)
        if not self.command.reads[place]:
            raise BenchError(f"{path} has no files", "Name the folder of the weights.")
        return place


def _place_program(program: str) -> str:
    """Return what to type for a program: its name if it is typed by its whole path."""
    return Path(program).name if Path(program).is_absolute() else program


def _is_code(path: Path) -> bool:
    """Return True for a script, and for a file of configuration."""
    with path.open("rb") as file:
        is_script = path.suffix in SCRIPTS or file.read(2) == b"#!"
    return is_script or (path.suffix in CONFIGURATION and path.stat().st_size <= MOST_BYTES)


def hash_files(folder: Path, names: Iterable[str]) -> Hashes:
    """Return the sha256 of those files that a folder has."""
    return {name: sha256_of_file(folder / name) for name in names if (folder / name).is_file()}


def read_training(path: Path) -> tuple[TrainingRecord | None, Path, Path]:
    """Return the record of the training of weights, its folder, and the folder of the training.

    ``path`` is the folder of the weights, or of the adapter in it. The record is None if no
    training of this version made them.
    """
    source = next((f for f in (path, path.parent) if (f / TRAINING_FILE).is_file()), path)
    try:
        record = read_json(source / TRAINING_FILE, TrainingRecord)
    except BenchError:
        return None, source, source
    adapts = record.conditions.get("command") == "adapt"
    return record, source, source.parent if adapts else source
