"""Repeat the commands of a bundle, and compare the scores of each query with the recorded ones."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from bench.bundling.bundle import MANIFEST, README, BundledCommand, BundleManifest
from bench.bundling.commands import FileSearch
from bench.comparing.pairs import ComparedModel, ComparisonSettings
from bench.evaluation.result_record import Evaluation
from bench.gate.candidate import Candidate
from bench.gate.check import check_against
from bench.gate.check_record import CheckRow
from bench.requests.data import ReplayRequest
from bench.requests.deciding import GateSettings
from bench.requests.outcomes import ExitCode
from bench.result_store.find import find_results
from bench.result_store.result import load
from bench.runner.workspace import Workspace, open_workspace
from datasets_cfg.catalogue import ENVIRONMENT
from foundation.errors import BenchError, format_names
from foundation.files import resolve_inside, sha256_of_file
from foundation.machine import library_version
from foundation.records import Record, find_differing_keys, read_json
from foundation.sources import ROOT, SUFFIX
from retrievers.models.card import BRANCH, Recipe, all_cards
from retrievers.models.locate import find_local
from retrievers.models.resolve import TRAINING_FILE
from retrievers.training.engine.identity import Training, TrainingRecord

COPIED = ("cards", "code", "presets", "recorded")
TRUST = "--trust-code"
COMMANDS = ("run", "score", "pretrain", "finetune", "adapt", "compose")
# Names of files in the settings of a training, whose content is compared.
PATHS = ("preset.start.model", "preset.objective.name", "preset.teacher.model")
State = Literal["repeated", "differs", "missing", "found", "would run"]


class ReplayedCommand(Record):
    """A command of a bundle after a replay.

    Attributes:
        command: what is typed.
        state: ``found`` stands for weights that are not trained again.
        notes: what is missing, differs or failed.
        rows: recorded and repeated score of each result, called MODEL on COLLECTION.
    """

    command: str
    state: State
    notes: tuple[str, ...] = ()
    rows: tuple[CheckRow, ...] = ()


class ReplayReport(Record):
    """A replay, or its plan.

    Attributes:
        commands: commands in the order of the bundle.
        libraries: libraries whose versions differ from the recorded ones.
        unrepeated: reason why no command repeats a result, by its folder.
    """

    commands: tuple[ReplayedCommand, ...]
    libraries: tuple[str, ...]
    unrepeated: dict[str, str]

    @property
    def exit_code(self) -> ExitCode:
        """0 if all is repeated or can be, 4 if something is missing, 5 if a score differs."""
        states = {each.state for each in self.commands}
        if "differs" in states:
            return ExitCode.DRIFT
        return ExitCode.MISSING if "missing" in states else ExitCode.OK


def replay(request: ReplayRequest) -> ReplayReport:
    """Repeat the commands of a bundle, or plan it with ``dry_run``.

    Raises:
        BenchError: the folder is not a complete bundle, or code that it has or names is not
            trusted.
    """
    manifest = read_bundle(request.bundle)
    words = [word for command in manifest.commands for word in command.words]
    code = [name for name in (*manifest.files, *words) if SUFFIX in name or name == TRUST]
    if code and not (request.trust_code or request.dry_run):
        problem = f"the bundle runs code: {format_names(code)}"
        raise BenchError(problem, "Read it, then allow it with --trust-code.")
    workspace = open_workspace(request)
    workspace = replace(workspace, offline=workspace.offline or request.dry_run)
    work = _Replay(request, manifest, workspace, FileSearch(request.search))
    done = tuple(work.repeat(number) for number in range(len(manifest.commands)))
    return ReplayReport(done, tuple(work.differing_libraries()), manifest.unrepeated)


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
    readme = (folder / README).read_text(encoding="utf-8")
    for command in manifest.commands:
        if command.words[0] not in COMMANDS or type_command(command) not in readme:
            raise BenchError(f"{folder / MANIFEST} was changed after it was written", hint)
    return manifest


def type_command(command: BundledCommand) -> str:
    """Return a command as it is typed."""
    return shlex.join(["python", "-m", "bench", *command.words])


@dataclass(frozen=True)
class _Replay:
    """Replay of a bundle into the folder ``request.out``, in which its commands are typed."""

    request: ReplayRequest
    manifest: BundleManifest
    workspace: Workspace
    files: FileSearch

    def repeat(self, number: int) -> ReplayedCommand:
        """Repeat a command and compare what it made, or say what it lacks."""
        command = self.manifest.commands[number]
        typed, trains = type_command(command), command.words[0] not in ("run", "score")
        if trains and self._finds_weights(command):
            return ReplayedCommand(typed, "found", ("its weights were found",))
        missing = [*self._missing_weights(command), *self._missing_inputs(command)]
        if missing:
            return ReplayedCommand(typed, "missing", tuple(dict.fromkeys(missing)))
        if self.request.dry_run:
            return ReplayedCommand(typed, "would run")
        results = f"results/{number + 1}"
        if failed := self._run(command, [] if trains else ["--results", results]):
            return ReplayedCommand(typed, "missing", (failed,))
        if trains:
            return self._compare_training(command, typed)
        new = {one.dataset: one for one in find_results(self.request.out / results)}
        return _compare_scores(self._recorded(command), new, typed)

    def _recorded(self, command: BundledCommand) -> list[Evaluation]:
        names = [name for name in command.makes if name.startswith("recorded/")]
        return [load(resolve_inside(self.request.bundle, name)) for name in names]

    def _finds_weights(self, command: BundledCommand) -> bool:
        """Return True if all weights that a training makes are found by their hashes."""
        wanted = [name.removeprefix("trainings/") for name in command.makes]
        reads = {p: f for each in self.manifest.commands for p, f in each.reads.items()}
        return all(any(self.files.folders(reads[p])) if p in reads else False for p in wanted)

    def _missing_weights(self, command: BundledCommand) -> Iterator[str]:
        """Yield the weights that are neither found nor trained by an earlier command.

        Those that are found are linked.
        """
        trained = {name for each in self.manifest.commands for name in each.makes}
        for path, hashes in command.reads.items():
            place = resolve_inside(self.request.out, path)
            found = next(self.files.folders(hashes), None)
            if found and not self.request.dry_run and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(found.resolve())
            elif not (found or place.exists()) and not (
                self.request.dry_run and f"trainings/{path}" in trained
            ):
                shown = ", ".join(f"{name} {sha256}" for name, sha256 in hashes.items())
                yield f"no folder of --search has the weights {path}: {shown}"

    def _missing_inputs(self, command: BundledCommand) -> Iterator[str]:
        """Yield the collections and published weights that are not on this machine, or differ."""
        if not self.request.dry_run:  # the commands find them, or download them
            return
        recorded = self._recorded(command)
        for typed in dict.fromkeys(command.on) if not recorded else ():
            try:
                self.workspace.documents([typed])
            except BenchError as error:
                yield f"{typed}: {error}"
        for typed, one in zip(command.on, recorded, strict=True) if recorded else ():
            protocol, recipe = one.record.protocol, one.record.recipe
            try:
                dataset = self.workspace.dataset(typed, protocol.split or None)
            except BenchError as error:
                yield f"{typed}: {error}"
                continue
            hashes = dataset.queries_sha256, dataset.qrels_sha256
            is_whole = protocol.collection == dataset.name
            if is_whole and hashes != (protocol.queries_sha256, protocol.qrels_sha256):
                yield f"{typed} has other queries or judgements than the recorded ones"
            if recipe and recipe.checkpoint and recipe.files and not command.reads:
                yield from _missing_files(recipe)

    def _run(self, command: BundledCommand, options: list[str]) -> str:
        """Run a command in the folder of the replay, and return why it failed, "" if it did not."""
        out, request = self.request.out, self.request
        for name in COPIED:
            if (request.bundle / name).is_dir():
                shutil.copytree(request.bundle / name, out / name, dirs_exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        options += ["--cache-dir", str(self.workspace.cache_dir.resolve())]
        options += ["--data-dir", str((request.data_dir or Path.cwd()).resolve())]
        python = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        words = [sys.executable, "-m", "bench", *command.words, *options]
        print(f"running {type_command(command)}", file=sys.stderr, flush=True)
        environment = {**os.environ, "PYTHONPATH": python}
        if named := os.environ.get(ENVIRONMENT):
            environment[ENVIRONMENT] = str(Path(named).absolute())
        if request.offline:
            environment["HF_HUB_OFFLINE"] = "1"
        done = subprocess.run(words, cwd=out, env=environment, stdout=subprocess.PIPE)
        if done.returncode in (ExitCode.OK, ExitCode.MISSING):
            return ""
        return f"it ended with exit code {done.returncode}, for the reason above"

    def _compare_training(self, command: BundledCommand, typed: str) -> ReplayedCommand:
        """Compare the records of a training with those in the bundle."""
        state: State = "repeated"
        notes = list[str]()
        for name in command.makes:
            recorded = read_json(self.request.bundle / name / TRAINING_FILE, TrainingRecord)
            path = self.request.out / name.removeprefix("trainings/") / TRAINING_FILE
            made = read_json(path, TrainingRecord)
            then, now = (
                {key: getattr(each, key) for key in Training.__struct_fields__}
                for each in (recorded, made)
            )
            changed = [name for name in find_differing_keys(then, now) if name not in PATHS]
            if changed:
                state = "differs"
                notes.append(f"another training: {format_names(changed)} differs")
            elif recorded.weights != made.weights:
                notes.append("the weights differ from the recorded ones; their scores decide")
        return ReplayedCommand(typed, state, tuple(notes))

    def differing_libraries(self) -> Iterator[str]:
        """Yield the libraries whose versions differ from those of a record."""
        recorded = [one for each in self.manifest.commands for one in self._recorded(each)]
        versions = {pair for one in recorded for pair in one.record.conditions.libraries.items()}
        for name, version in sorted(versions):
            here = library_version(name) or "not installed"
            if here != version:
                yield f"{name} {version}, here {here}"


def _missing_files(recipe: Recipe) -> Iterator[str]:
    """Yield published weights that are not on this machine, or are others."""
    cards = [card for card in all_cards().values() if card.checkpoint == recipe.checkpoint]
    package = cards[0].package if cards else ""
    folder = find_local(recipe.checkpoint, recipe.revision or BRANCH, package)
    source = f"{recipe.checkpoint}@{recipe.revision}".strip("@")
    if folder is None:
        yield f"{source} is not on this machine"
    elif next(FileSearch((folder,)).folders(recipe.files), None) is None:
        yield f"{source} has other files than the recorded ones"


def _compare_scores(
    recorded: Iterable[Evaluation], new: dict[str, Evaluation], typed: str
) -> ReplayedCommand:
    """Compare the scores of each query, as ``check --expect-same`` does."""
    state: State = "repeated"
    notes, rows = list[str](), list[CheckRow]()
    for one in recorded:
        name = one.dataset
        sides = Candidate("replayed", {n: e for n, e in new.items() if n == name})
        stored = ComparedModel("recorded", {name: one})
        settings = GateSettings(expect_same=True)
        try:
            done = check_against(sides, stored, {name: 1.0}, settings, ComparisonSettings())
        except BenchError as error:  # another protocol
            state = "differs"
            notes.append(str(error))
            continue
        label = f"{one.model} on {name}"
        rows += [msgspec.structs.replace(row, name=label) for row in done.rows]
        if done.outcome != "OK":
            state = "missing" if done.outcome == "MISSING" and state != "differs" else "differs"
            notes += map(str, done.reasons)
    return ReplayedCommand(typed, state, tuple(notes), tuple(rows))
