"""Repeat the commands of a bundle, and compare the scores of each query with the recorded ones."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from bench.bundling.manifest import (
    COPIED,
    INPUTS,
    LOCK,
    PROGRAM,
    RECORDED,
    REPORT,
    REPORTS,
    TRAININGS,
    WEIGHTS,
    BundledCommand,
    BundleManifest,
    find_code,
    read_bundle,
)
from bench.comparing.pairs import ComparedModel, ComparisonSettings
from bench.evaluation.result_record import Evaluation
from bench.experiments.report_record import Report
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
from foundation.sources import ROOT
from retrievers.models.card import BRANCH, Card, all_cards
from retrievers.models.locate import find_local
from retrievers.models.names import TRAINING_FILE
from retrievers.training.engine.identity import Training, TrainingRecord

# Names of files in the settings of a training, whose content is compared.
PATHS = ("preset.start.model", "preset.objective.name", "preset.teacher.model")
TOLERANCE = GateSettings().tolerance
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
        code: files and programs that the commands run.
    """

    commands: tuple[ReplayedCommand, ...]
    libraries: tuple[str, ...]
    unrepeated: dict[str, str]
    code: tuple[str, ...] = ()

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
    code = find_code(request.bundle, manifest)
    if code and not (request.trust_code or request.dry_run):
        problem = f"the bundle runs code: {', '.join(code)}"
        raise BenchError(problem, "Read it, then allow it with --trust-code.")
    workspace = open_workspace(request)
    workspace = replace(workspace, offline=workspace.offline or request.dry_run)
    work = _Replay(request, manifest, workspace)
    done = tuple(work.repeat(number) for number in range(len(manifest.commands)))
    libraries = tuple(work.differing_libraries())
    return ReplayReport(done, libraries, manifest.unrepeated, tuple(code))


def find_folders(roots: Iterable[Path], files: Mapping[str, str]) -> Iterator[Path]:
    """Yield each folder below ``roots`` that has all ``files``, hashes by relative path."""
    anchor = Path(min(files, key=lambda name: (name.endswith((".safetensors", ".bin")), name)))
    for path in (path for root in roots for path in sorted(root.rglob(anchor.name))):
        folder = path.parents[len(anchor.parts) - 1]
        if all(_has_content(folder / name, sha256) for name, sha256 in files.items()):
            yield folder


@cache
def _has_content(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of_file(path) == sha256


@dataclass(frozen=True)
class _Replay:
    """Replay of a bundle into the folder ``request.out``, in which its commands are typed."""

    request: ReplayRequest
    manifest: BundleManifest
    workspace: Workspace

    def repeat(self, number: int) -> ReplayedCommand:
        """Repeat a command and compare what it made, or say what it lacks."""
        command = self.manifest.commands[number]
        typed = command.typed
        if found := self._find_made(command):
            return ReplayedCommand(typed, "found", (found,))
        missing = [*self._missing_weights(command), *self._missing_inputs(command)]
        missing += [f"there is no program {p}" for p in command.programs if not shutil.which(p)]
        if missing:
            return ReplayedCommand(typed, "missing", tuple(dict.fromkeys(missing)))
        needs = tuple(command.describe_not_copied())
        if self.request.dry_run:
            return ReplayedCommand(typed, "would run", needs)
        if failed := self._run(command):
            return ReplayedCommand(typed, "missing", (failed, *needs))
        if not command.makes:
            return ReplayedCommand(typed, "repeated")
        if command.makes[0].startswith(TRAININGS):
            return self._compare_training(command)
        if command.makes[0].startswith(REPORTS):
            return self._compare_table(command)
        new = {one.dataset: one for one in find_results(self.request.out / command.out)}
        return _compare_scores(self._recorded(command), new, typed)

    def _recorded(self, command: BundledCommand) -> list[Evaluation]:
        """Return the recorded results that a command makes."""
        names = [name for name in command.makes if name.startswith(RECORDED)]
        return [load(resolve_inside(self.request.bundle, name)) for name in names]

    def _find_made(self, command: BundledCommand) -> str:
        """Return what is found of a training or an index, which is not made again, or ""."""
        if command.words[0] == "index":
            return "it is there already" if (self.request.out / command.out).exists() else ""
        wanted = [n.removeprefix(TRAININGS) for n in command.makes if n.startswith(TRAININGS)]
        reads = {p: f for each in self.manifest.commands for p, f in each.reads.items()}
        found = [
            path in reads and any(find_folders(self.request.search, reads[path])) for path in wanted
        ]
        return "its weights were found" if found and all(found) else ""

    def _missing_weights(self, command: BundledCommand) -> Iterator[str]:
        """Yield the weights and files that are neither found nor made by an earlier command.

        Those that are found are linked.
        """
        trained = {name for each in self.manifest.commands for name in each.makes}
        for path, hashes in command.reads.items():
            place = resolve_inside(self.request.out, path)
            found = next(find_folders(self.request.search, hashes), None)
            is_there = any((place / name).exists() for name in hashes)
            if found and not self.request.dry_run and not is_there:
                is_whole = path.startswith((WEIGHTS, INPUTS))  # not a folder with copies
                for name in [""] if is_whole else hashes:
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    (place / name).symlink_to((found / name).resolve())
            elif not (found or is_there) and not (
                self.request.dry_run and f"{TRAININGS}{path}" in trained
            ):
                shown = ", ".join(f"{name} {sha256}" for name, sha256 in hashes.items())
                yield f"no folder of --search has the files of {path}: {shown}"

    def _missing_inputs(self, command: BundledCommand) -> Iterator[str]:
        """Yield the collections and published weights that are not on this machine, or differ."""
        if not self.request.dry_run:  # the commands find them, or download them
            return
        recorded = {name: load(self.request.bundle / name) for name in command.on.values() if name}
        for typed, name in command.on.items():
            protocol = recorded[name].record.protocol if name else None
            try:
                if protocol is None:
                    self.workspace.documents([typed])
                    continue
                dataset = self.workspace.dataset(typed, protocol.split or None)
            except BenchError as error:
                yield f"{typed}: {error}"
                continue
            here = dataset.queries_sha256, dataset.qrels_sha256
            is_whole = protocol.collection == dataset.name
            if is_whole and here != (protocol.queries_sha256, protocol.qrels_sha256):
                yield f"{typed} has other queries or judgements than the recorded ones"
        recipes = filter(None, (one.record.recipe for one in recorded.values()))
        hashes = {recipe.checkpoint: recipe.files for recipe in recipes}
        for model in command.published:
            card = all_cards().get(model) or Card(name=model, title=model, checkpoint=model)
            yield from _missing_files(card, hashes.get(card.checkpoint, {}))

    def _run(self, command: BundledCommand) -> str:
        """Run a command in the folder of the replay, and return why it failed, "" if it did not."""
        out, request = self.request.out, self.request
        for name in filter(lambda name: name.startswith(COPIED), self.manifest.files):
            place = resolve_inside(out, name.removeprefix(PROGRAM))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(request.bundle / name, place)  # with its permissions
        options = ["--cache-dir", str(self.workspace.cache_dir.resolve())]
        options += ["--data-dir", str((request.data_dir or Path.cwd()).resolve())]
        python = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        words = [sys.executable, "-m", "bench", *command.words, *options]
        print(f"running {command.typed}", file=sys.stderr, flush=True)
        environment = {**os.environ, "PYTHONPATH": python}
        if named := os.environ.get(ENVIRONMENT):
            environment[ENVIRONMENT] = str(Path(named).absolute())
        if request.offline:
            environment["HF_HUB_OFFLINE"] = "1"
        done = subprocess.run(words, cwd=out, env=environment, stdout=subprocess.PIPE)
        if done.returncode in (ExitCode.OK, ExitCode.MISSING):
            return ""
        return f"it ended with exit code {done.returncode}, for the reason above"

    def _compare_table(self, command: BundledCommand) -> ReplayedCommand:
        """Compare the scores of each row, seed and collection of an ablation with the recorded."""
        recorded = read_json(self.request.bundle / command.makes[0] / REPORT, Report)
        folder = self.request.out / command.out / recorded.name
        made = _table_scores(read_json(folder / REPORT, Report))
        rows = tuple(
            CheckRow(
                on=f"{recorded.rows[place].name}, seed {seed}, on {collection}",
                mean_b=score,
                mean_a=made.get((place, seed, collection)),
            )
            for (place, seed, collection), score in _table_scores(recorded).items()
        )
        other = [row.on for row in rows if abs(row.difference or 0) > TOLERANCE]
        lost = [row.on for row in rows if row.difference is None]
        notes = [f"no score of {format_names(lost)}"] if lost else []
        notes += [f"other scores of {format_names(other)}"] if other else []
        state: State = "differs" if other else "missing" if lost else "repeated"
        return ReplayedCommand(command.typed, state, tuple(notes), rows)

    def _compare_training(self, command: BundledCommand) -> ReplayedCommand:
        """Compare the records of a training with those in the bundle."""
        state: State = "repeated"
        notes = list[str]()
        for name in command.makes:
            recorded = read_json(self.request.bundle / name / TRAINING_FILE, TrainingRecord)
            path = self.request.out / name.removeprefix(TRAININGS) / TRAINING_FILE
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
        return ReplayedCommand(command.typed, state, tuple(notes))

    def differing_libraries(self) -> Iterator[str]:
        """Yield the libraries whose versions differ from those of a record."""
        for line in (self.request.bundle / LOCK).read_text(encoding="utf-8").split():
            name, _, version = line.partition("==")
            here = library_version(name) or "not installed"
            if here != version:
                yield f"{name} {version}, here {here}"


def _table_scores(report: Report) -> dict[tuple[int, int, str], float]:
    """Return the scores of an ablation by number of the row, seed and collection."""
    return {
        (place, cell.seed, collection): score
        for place, row in enumerate(report.rows)
        for cell in row.cells
        for collection, score in cell.scores.items()
    }


def _missing_files(card: Card, files: Mapping[str, str]) -> Iterator[str]:
    """Yield published weights that are not on this machine, or differ from recorded ``files``."""
    if not card.checkpoint:
        return
    folder = find_local(card.checkpoint, card.revision or BRANCH, card.package)
    if folder is None:
        yield f"{card.checkpoint} is not on this machine"
    elif files and next(find_folders([folder], files), None) is None:
        yield f"{card.checkpoint} has other files than the recorded ones"


def _compare_scores(
    recorded: Iterable[Evaluation], new: dict[str, Evaluation], typed: str
) -> ReplayedCommand:
    """Compare the scores of each query, as ``check --expect-same`` does."""
    state: State = "repeated"
    notes, rows = list[str](), list[CheckRow]()
    for one in recorded:
        name = one.dataset
        again = Candidate("replayed", {name: new[name]} if name in new else {})
        stored = ComparedModel("recorded", {name: one})
        settings = GateSettings(expect_same=True)
        try:
            done = check_against(again, stored, {name: 1.0}, settings, ComparisonSettings())
        except BenchError as error:  # another protocol
            state = "differs"
            notes.append(str(error))
            continue
        label = f"{one.model} on {name}"
        rows += [msgspec.structs.replace(row, on=label) for row in done.rows]
        if done.outcome != "OK":
            state = "missing" if done.outcome == "MISSING" and state != "differs" else "differs"
            notes += map(str, done.reasons)
    return ReplayedCommand(typed, state, tuple(notes), tuple(rows))
