"""Training by a command: the stages of a grid that another program runs."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bench.experiments.experiment import MODEL, Cost, ExperimentStage
from bench.experiments.grid import TomlTable, format_label
from bench.experiments.training_stages import check_no_start, last_checkpoint
from bench.runner.workspace import Workspace
from bench.training.training_sets import trained_collections
from datasets_cfg.catalogue import expand_names
from foundation.errors import BenchError, did_you_mean
from foundation.files import sha256_of_file
from foundation.records import Record, convert_table
from foundation.sources import SUFFIX, find_module, find_own_files
from retrievers.models.card import load_card, replace_fields, write_card
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from retrievers.training.pretrain.start import find_checkpoint, hash_start

OUT, SEED, START = "out", "seed", "start"
STDOUT_FILE, STDERR_FILE = "stdout.txt", "stderr.txt"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class CommandSettings(Record, kw_only=True):
    """Settings of ``[pretrain]`` or ``[finetune]`` with a ``command``: another program trains.

    Any other key of the table is a setting of the command, which the rows of an axis may change.

    Attributes:
        command: program and its arguments. ``{out}`` stands for the empty folder that the program
            writes its checkpoint to, ``{seed}`` for the cell's seed, ``{start}`` for the folder of
            the model to start from, and ``{NAME}`` for the setting ``NAME``.
        inputs: further files and folders that the program reads. If their content changes, or the
            content of a file that the command or a setting names, or of a module that such a file
            imports from its folder, the cell is trained again.
        start: card, folder or Hub id to start from; "" for the model of the stage before.
        like: card whose pooling, prompts and lengths the checkpoint uses; "" if its folder states
            them, as a folder of sentence-transformers does.
        on: collections that the program trains on. Leaks of evaluated queries are looked for in
            them, and their scores are marked as in-domain.
        split: split of ``on`` that it trains on.
    """

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    inputs: tuple[str, ...] = ()
    start: str = ""
    like: str = ""
    on: tuple[str, ...] = ()
    split: str = "train"


@dataclass(frozen=True)
class CommandStage(ExperimentStage):
    """Training by another program, which ``follows`` another stage or model."""

    name: str
    workspace: Workspace
    follows: bool
    seeds: int

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of `CommandSettings` and the settings of the command in ``table``."""
        values, known = dict(table), CommandSettings.__struct_fields__
        fields = {name: values.pop(name) for name in known if name in values}
        settings = convert_table(fields, CommandSettings, f"[{self.name}]")
        if settings.start and self.follows:
            check_no_start(fields)
        self._check_placeholders(settings, values)
        if shutil.which(settings.command[0]) is None:
            raise BenchError(f"there is no program {settings.command[0]!r}", "Install it.")
        for path in settings.inputs:
            if not Path(path).exists():
                raise BenchError(f"inputs: there is no file or folder {path!r}")
        if settings.like:
            load_card(settings.like)
        expand_names(settings.on, self.workspace.data_dir)
        return {**msgspec.to_builtins(settings), **values}

    def _check_placeholders(self, settings: CommandSettings, values: TomlTable) -> None:
        """Raise if a placeholder has no value, or a value or the seed would have no effect."""
        for name, value in values.items():
            if name == OUT or not isinstance(value, str | int | float):
                raise BenchError(
                    f"{name} is not a setting of a command", "A setting is text or a number."
                )
        used = set(_PLACEHOLDER.findall(" ".join(settings.command)))
        needed = {OUT, *values} | ({SEED} if self.seeds > 1 else set())
        known = needed | {SEED, "like", "split"}
        known |= {START} if self.follows or settings.start else set()
        for name in sorted(used - known):
            raise BenchError(
                f"the command has {{{name}}}, which is not a setting",
                did_you_mean(name, known, f"Set it: {name} = VALUE."),
            )
        for name in sorted(needed - used):
            raise BenchError(
                f"the command has no {{{name}}}", f'Add it, such as "--{name}", "{{{name}}}"'
            )

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return hashes of the files in ``settings`` and of the initial model."""
        hashes = {str(path): sha256_of_file(path) for path in input_files(settings)}
        return hashes | (hash_start(settings[START], "start ") if settings[START] else {})

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Run the command of ``settings`` from ``model``, in an empty folder below ``out``."""
        folder = (out / MODEL).resolve()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        start = last_checkpoint(model) or settings[START]
        folders = {OUT: str(folder), START: str(find_checkpoint(start)[0].root) if start else ""}
        words = fill_placeholders(settings["command"], _scalars(settings) | folders)
        with (out / STDOUT_FILE).open("wb") as output, (out / STDERR_FILE).open("wb") as errors:
            ended = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, check=False
            )
        if ended.returncode:
            raise _command_error(words, ended.returncode, out / STDERR_FILE)
        try:
            card = resolve_model(str(folder), ModelSettings(like=settings["like"] or None)).card
        except BenchError as error:
            raise BenchError(
                f"the command left no checkpoint to use: {error}",
                'Set like = "CARD" in the table of the stage if only the pooling is missing.',
            ) from error
        names = [dataset.name for dataset in self.workspace.datasets(settings["on"])]
        trained_on = (*card.trained_on, *trained_collections(names))
        write_card(replace_fields(card, {"trained_on": trained_on}), folder)
        return Cost()


def fill_placeholders(words: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Return ``words`` with each ``{NAME}`` replaced by its value in ``values``, if it has one."""

    def value_of(match: re.Match[str]) -> str:
        return format_label(values[match[1]]) if match[1] in values else match[0]

    return [_PLACEHOLDER.sub(value_of, word) for word in words]


def _scalars(settings: TomlTable) -> TomlTable:
    return {name: value for name, value in settings.items() if isinstance(value, str | int | float)}


def input_files(settings: TomlTable) -> Iterator[Path]:
    """Yield the files in complete ``settings``, with the modules that they import."""
    values = _scalars(settings)
    words = fill_placeholders(settings["command"], values)
    for path in map(Path, filter(os.path.isfile, [*words, *map(str, values.values())])):
        yield from find_own_files(path)[0] if path.suffix == SUFFIX else [path]
    for option, name in pairwise(words):
        if option == "-m" and (module := find_module(name, Path())):
            yield from find_own_files(module, Path())[0]
    for path in map(Path, settings["inputs"]):
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from filter(Path.is_file, below)


def _command_error(words: list[str], code: int, stderr: Path) -> BenchError:
    lines = stderr.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    problem = f"{words[0]} {how}{last}\ncommand: {shlex.join(words)}"
    return BenchError(problem, f"See {stderr}; the same command tries it again.")
