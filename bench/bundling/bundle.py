"""A folder with everything that repeats results, except data and weights.

::

    README.md          the commands in order, and where data and weights come from
    bundle.json        `BundleManifest`: the commands, and hashes of all files
    requirements.txt   versions of the libraries
    recorded/          records and scores per query, as `run` stored them
    reports/           reports of ablations
    trainings/         records of the trainings that made weights
    cards/ presets/ grids/ suites/    files of the user that commands name
    code/              the user's code, by the first digits of its hash

Commands are typed in a copy of the folder, in which weights are in ``models/``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import msgspec

from bench.bundling.copies import Copies, read_training
from bench.bundling.manifest import (
    LOCK,
    MANIFEST,
    README,
    RECORDED,
    REPORT,
    REPORTS,
    TRAININGS,
    WEIGHTS,
    BundledCommand,
    BundleManifest,
)
from bench.evaluation.result_record import (
    OVERLAY_FILE,
    RUN_FILE,
    SCORES_FILE,
    Conditions,
    Evaluation,
    Result,
)
from bench.evaluation.retriever import EvaluationOptions, Retriever
from bench.experiments.experiment import COMMAND
from bench.experiments.grid import FILES as GRID_FILES
from bench.experiments.report_record import Report
from bench.requests.data import BundleRequest
from bench.requests.fields import typed_words
from bench.result_store.find import find_named, find_results
from bench.result_store.result import RESULT_FILE
from bench.runner.workspace import Workspace, open_workspace
from bench.store.indexes import MANIFEST_FILE, IndexFolder
from datasets_cfg.catalogue import dataset_names, metadata_for
from foundation.errors import BenchError
from foundation.files import replace_folder, sha256_of_file
from foundation.records import read_json, read_toml, write_json
from retrievers.models.card import Recipe, all_cards
from retrievers.models.names import TRAINING_FILE
from retrievers.models.settings import ModelSettings
from retrievers.training.engine.identity import TrainingRecord

RESULTS = "results"
EVALUATE = "evaluate"  # folder of the results of an ablation
AGAIN = "Evaluate again with `bench run`, then bundle the new result."
POSITIONAL = {
    "score": ("run",),
    "compose": ("how", "adapters"),
    "index": ("dataset",),
    "ablate": ("grid",),
    **dict.fromkeys(("pretrain", "finetune", "adapt"), ("preset",)),
}
UNKNOWN = "its record states no command: Python made it, or an older version"


def bundle(request: BundleRequest) -> BundleManifest:
    """Write a bundle of stored results and ablations to a new folder, and return its manifest.

    Raises:
        BenchError: there are no results, or the folder is not empty.
    """
    if request.out.exists() and (not request.out.is_dir() or any(request.out.iterdir())):
        raise BenchError(f"{request.out} is not empty", "Choose a new folder.")
    reports = [file for name in request.results for file in _find_reports(Path(name))]
    stored = [one for name in request.results for one in _find(name, reports)]
    with replace_folder(request.out) as folder:
        workspace = replace(open_workspace(request), offline=True)
        writer = _Writer(folder, workspace, Copies(folder, request.data_dir))
        for file in dict.fromkeys(reports):
            writer.add_ablation(file)
        for one in {each.folder: each for each in stored}.values():
            writer.add_result(one)
        return writer.finish()


def _find_reports(folder: Path) -> list[Path]:
    """Return the reports of ablations in a folder."""
    return sorted({*folder.glob(REPORT), *folder.glob(f"*/{REPORT}")})


def _find(name: str, reports: Sequence[Path]) -> list[Evaluation]:
    """Return the results in a folder, or of a name, but those of ablations."""
    found = find_results(Path(name)) if Path(name).is_dir() else find_named(name, Path(RESULTS))
    if not found and not _find_reports(Path(name)):
        hint = "Give a folder of `run` or `ablate`, such as results."
        raise BenchError(f"{name} holds no results", hint)
    cells = [file.parent.parent / EVALUATE for file in reports]
    return [one for one in found if not any(cell in one.run_file.parents for cell in cells)]


@dataclass
class _Writer:
    """A bundle while it is written.

    Attributes:
        folder: folder of the bundle.
        workspace: where collections and models are looked for.
        copies: copies of what commands name.
        makers: commands that train, index or ablate, by the folder or report that they write.
        runs: commands that evaluate, by their words without collections.
        judged: results with imported judgements, by the words of the command that evaluates, the
            collection as it is typed and in results, and the hash of the judgements.
        unrepeated: see `BundleManifest`.
        conditions: conditions of all records.
    """

    folder: Path
    workspace: Workspace
    copies: Copies
    makers: dict[Path, BundledCommand] = field(default_factory=dict)
    runs: dict[tuple[str, ...], BundledCommand] = field(default_factory=dict)
    judged: dict[tuple[tuple[str, ...], str, str, str], list[str]] = field(default_factory=dict)
    unrepeated: dict[str, str] = field(default_factory=dict)
    conditions: list[Conditions] = field(default_factory=list)

    def add_result(self, stored: Evaluation) -> None:
        """Copy a result, and add the command that repeats it, or the reason why none does."""
        record, source = stored.record, stored.run_file.parent
        target = f"{RECORDED}{record.protocol.collection}/{record.model}/{source.name}"
        copied = [RESULT_FILE, SCORES_FILE, OVERLAY_FILE, *([] if record.recipe else [RUN_FILE])]
        for name in copied:
            if (source / name).exists():
                self.copies.copy(source / name, f"{target}/{name}")
        self.conditions.append(record.conditions)
        try:
            self._add_evaluation(record, target)
        except BenchError as error:
            self.unrepeated[target] = f"{error}. {error.hint}".strip()

    def _add_evaluation(self, record: Result, target: str) -> None:
        """Add a result to the command that makes it."""
        name, collection = record.conditions.command, record.protocol.collection
        fields = dict(record.conditions.request)
        if not name:
            raise BenchError(UNKNOWN, "If a command made it, type it again with --recompute.")
        if name == "score":
            fields |= {"run": f"{target}/{RUN_FILE}", "name": record.model}
            fields.pop("passages", None)  # which are merged in the recorded ranking
        elif record.recipe:
            (fields["model"],) = fields["model"]
            self._check_unchanged(record, record.recipe, fields)
            fields |= {"index": self._add_index(fields["index"])} if "index" in fields else {}
            adapter = record.recipe.adapter
            self.copies.files = {**record.recipe.files, **record.recipe.query_files}
            self.copies.files |= adapter.files if adapter else {}
        typed = fields.get("model")
        moved, named = self._relocate(fields)
        if moved.get("model") != typed:
            moved["name"] = record.model
        (opens,) = named.on
        moved.pop("names", None)
        words = typed_words(name, moved, *POSITIONAL.get(name, ()))
        command = self.runs.setdefault(words, named)
        command.on[opens] = target
        if overlay := record.protocol.overlay:
            self.judged.setdefault((words, opens, collection, overlay), []).append(target)
        else:
            command.makes.append(target)

    def _check_unchanged(self, record: Result, recipe: Recipe, fields: Mapping[str, Any]) -> None:
        """Raise if the model that a request names is not the evaluated one. No code is run."""
        if recipe.traits.is_remote or "trust_code" in fields:
            return
        known = {each.name for each in attrs.fields(ModelSettings)} & fields.keys()
        settings = ModelSettings(**{name: fields[name] for name in known})
        model = _load(self.workspace, fields["model"], settings)
        here = model.for_dataset(record.protocol.collection).recipe
        if here.stateless.fingerprint != recipe.stateless.fingerprint:
            raise BenchError(f"{fields['model']} has changed since it was evaluated", AGAIN)

    def _relocate(self, fields: Mapping[str, Any]) -> tuple[dict[str, Any], BundledCommand]:
        """Return the fields of a request in the bundle, and what they name, after its trainings."""
        self.copies.command = named = BundledCommand((), "")
        moved = {name: self.copies.relocate(name, value) for name, value in fields.items()}
        for path, place in [*self.copies.placed.items()]:
            if place in named.reads:
                self._add_training(path, place)
        return moved, named

    def _add_training(self, path: Path, place: str) -> None:
        """Add the command that trains the weights in a folder, after those of what it reads."""
        record, source, home = read_training(path)
        target, self.copies.files = f"{TRAININGS}{place}", {}
        if record is None or target in self.unrepeated:
            return
        self.copies.copy(source / TRAINING_FILE, f"{target}/{TRAINING_FILE}")
        if home not in self.makers:
            try:
                self.makers[home] = self._make_training(record, home)
            except BenchError as error:
                self.unrepeated[target] = str(error)
                return
        if target not in self.makers[home].makes:
            self.makers[home].makes.append(target)

    def _make_training(self, record: TrainingRecord, home: Path) -> BundledCommand:
        """Return the command of a training that writes the folder ``home``."""
        name, fields = record.conditions.get("command"), dict(record.conditions.get("request", {}))
        if not name or not isinstance(fields.get("preset", ""), str):
            raise BenchError(UNKNOWN)
        settings = fields.pop("method_settings", {})
        changes = {f"method.{key}": value for key, value in settings.items()}
        if changes:
            fields["changes"] = {**fields.get("changes", {}), **changes}
        return self._write(name, fields, f"{WEIGHTS}{home.name}")

    def _write(self, name: str, fields: Mapping[str, Any], out: str, **more: Any) -> BundledCommand:
        """Return a command that writes the folder ``out``, and names what is in ``more``, too."""
        moved, named = self._relocate({**fields, **more})
        typed = {name: value for name, value in moved.items() if name not in more}
        words = typed_words(name, {**typed, "out": out}, *POSITIONAL[name])
        return msgspec.structs.replace(named, words=words, out=out)

    def _add_index(self, typed: str) -> str:
        """Return what to type for an index, and add the command that exports it."""
        folder = Path(typed).resolve()
        if not (folder / MANIFEST_FILE).is_file():
            return typed
        fields, out = IndexFolder(folder).manifest().request, f"indexes/{folder.name}"
        if not fields:
            raise BenchError(f"{folder} states no command", "Write it again with `bench index`.")
        self.copies.place(folder, out)
        if folder not in self.makers:
            self.makers[folder] = self._write("index", fields, out)
        return out

    def add_ablation(self, file: Path) -> None:
        """Copy the report of an ablation, and add its command, or the reason why there is none."""
        report = read_json(file, Report)
        target, name = f"{REPORTS}{report.name}", report.conditions.command
        self.copies.copy(file, f"{target}/{REPORT}")
        self.conditions.append(report.conditions)
        fields = report.conditions.request
        try:
            if not name:
                raise BenchError(UNKNOWN, f"Run `{report.command}` again.")
            table = read_toml(GRID_FILES.find(fields["grid"]), dict[str, Any])
            self.copies.command = command = self._write(name, fields, "ablations", table=table)
            for settings in (table for row in report.rows for table in row.settings.values()):
                if COMMAND in settings:
                    self.copies.copy_program(settings)
        except BenchError as error:
            self.unrepeated[target] = f"{error}. {error.hint}".strip()
            return
        command.makes.append(target)
        self.makers[file] = command

    def finish(self) -> BundleManifest:
        """Write the README, the versions of libraries and the manifest."""
        commands = (*self.makers.values(), *self._numbered())
        ordered = sorted(self.conditions, key=lambda each: each.time)
        versions = {n: version for each in ordered for n, version in each.libraries.items()}
        lock = "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
        (self.folder / LOCK).write_text(lock, encoding="utf-8")
        newest = ordered[-1]
        made_by = f"{newest.bench}, commit {newest.commit or 'unknown'}, Python {newest.python}"
        manifest = BundleManifest(made_by, commands, self.unrepeated, {})
        readme = _write_readme(manifest)
        (self.folder / README).write_text(readme, encoding="utf-8")
        files = {
            path.relative_to(self.folder).as_posix(): sha256_of_file(path)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        manifest = msgspec.structs.replace(manifest, files=files)
        write_json(self.folder / MANIFEST, manifest)
        return manifest

    def _numbered(self) -> Iterator[BundledCommand]:
        """Yield the commands that evaluate, each with a folder of results of its own."""
        for number, (words, command) in enumerate(self.runs.items(), 1):
            out = f"{RESULTS}/{number}"
            names = command.on if words[0] == "run" else ()
            typed = (words[0], *names, *words[1:], "--results", out)
            yield msgspec.structs.replace(command, words=typed, out=out)
            for (base, opens, collection, overlay), targets in self.judged.items():
                if base == words:
                    judged = f"{RESULTS}/{number}-{overlay}"
                    places = ("--on", collection, "--results", out, "--out", judged)
                    typed = ("judge", "import", f"{targets[0]}/{OVERLAY_FILE}", *places)
                    yield BundledCommand(typed, judged, targets, {opens: targets[0]})


@cache
def _load(workspace: Workspace, name: str, settings: ModelSettings) -> Retriever:
    return workspace.load(name, settings).configured(EvaluationOptions(), workspace.resources)


def _describe_needs(command: BundledCommand) -> Iterator[str]:
    """Yield the collections and weights that a command reads, with sources and hashes, as lines."""
    for name in command.on:
        declared = metadata_for(name) if name in dataset_names() else None
        source = declared and (declared.hub or declared.homepage or declared.title)
        yield f"- {name} ({source or 'not a published collection'})"
    for name in command.published:
        card = all_cards().get(name)
        where = f"{card.checkpoint}@{card.revision}".strip("@") if card else name
        yield f"- {name} ({where or 'without weights'})"
    for place, files in command.reads.items():
        yield f"- {place}: {', '.join(f'{name} `{sha256}`' for name, sha256 in files.items())}"
    yield from (f"- {each}" for each in command.describe_not_copied())


README_TEXT = """\
# How to repeat these results

Made with retrieval-bench {made_by}. `requirements.txt` has the versions of the libraries.

    python -m bench replay FOLDER --dry-run
    python -m bench replay FOLDER

The first says what it would run and what is missing, the second runs the commands below in a copy \
of this folder, and compares the scores of each query with those in `recorded/`. Weights that no \
command trains are looked for by their hashes, with `--search`.

## Commands

{commands}

## Data and weights

They are not in this folder. Hashes of collections and published weights are in the records.

{needs}
{unrepeated}"""


def _write_readme(manifest: BundleManifest) -> str:
    reasons = [f"- `{place}`: {reason}" for place, reason in manifest.unrepeated.items()]
    needs = [line for command in manifest.commands for line in _describe_needs(command)]
    return README_TEXT.format(
        made_by=manifest.bench,
        commands="\n".join(f"    {command.typed}" for command in manifest.commands) or "None.",
        needs="\n".join(dict.fromkeys(needs)),
        unrepeated="\n".join(["\n## Not repeated\n", *reasons, ""]) if reasons else "",
    )
