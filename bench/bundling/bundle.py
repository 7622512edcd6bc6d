"""A folder with everything that repeats results, except data and weights.

::

    README.md          the commands in order, and where data and weights come from
    bundle.json        `BundleManifest`: the commands, and hashes of all files
    requirements.txt   versions of the libraries
    recorded/          records and scores per query, as `run` stored them
    trainings/         records of the trainings that made weights
    cards/ presets/    files of the user that commands name
    code/              the user's code, by the first digits of its hash

Commands are typed in a copy of the folder, in which weights are in ``models/``.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from bench.bundling.commands import FileSearch, find_request, typed_words
from bench.evaluation.result_record import OVERLAY_FILE, RUN_FILE, SCORES_FILE, Evaluation, Result
from bench.requests.data import BundleRequest
from bench.requests.fields import given_fields
from bench.result_store.find import find_named, find_results
from bench.result_store.result import RESULT_FILE
from bench.runner.workspace import Workspace, open_workspace
from datasets_cfg.catalogue import dataset_names, facts_for
from foundation.errors import BenchError
from foundation.files import replace_folder, sha256_of_file
from foundation.records import SUFFIX as TOML
from foundation.records import Record, read_json, write_json
from foundation.sources import SUFFIX as PYTHON
from retrievers.models.card import CARD_FILE, load_card
from retrievers.models.locate import PYTHON_FILE, READY_VECTORS, is_url
from retrievers.models.read_checkpoint import ADAPTER_FOLDER
from retrievers.models.resolve import TRAINING_FILE
from retrievers.training.engine.identity import WEIGHT_SUFFIXES, TrainingRecord

MANIFEST, README, LOCK = "bundle.json", "README.md", "requirements.txt"
HASH_DIGITS = 8


class BundledCommand(Record):
    """A command of a bundle.

    Attributes:
        words: what is typed after ``python -m bench``, in the folder of a replay.
        makes: records in the bundle that the command makes again.
        on: collections that it reads, as they are typed; of an evaluation, that of each result.
        reads: hashes of the files that are read of each folder of weights, by its path.
    """

    words: tuple[str, ...]
    makes: list[str]
    on: list[str] = []
    reads: dict[str, dict[str, str]] = {}


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
    schema: int = 1


def bundle(request: BundleRequest) -> BundleManifest:
    """Write a bundle of stored results to a new folder, and return its manifest.

    Raises:
        BenchError: there are no results, or the folder is not empty.
    """
    if request.out.exists() and (not request.out.is_dir() or any(request.out.iterdir())):
        raise BenchError(f"{request.out} is not empty", "Choose a new folder.")
    stored = [one for name in request.results for one in _find(name)]
    workspace = replace(open_workspace(request), offline=True)
    with replace_folder(request.out) as folder:
        writer = _Writer(folder, workspace, FileSearch(request.search))
        for one in {each.folder: each for each in stored}.values():
            writer.add_result(one)
        return writer.finish([one.record for one in stored])


def _find(name: str) -> list[Evaluation]:
    """Return the results in a folder, or of a name."""
    found = find_results(Path(name)) if Path(name).is_dir() else find_named(name, Path("results"))
    if not found:
        raise BenchError(f"{name} holds no results", "Give a folder of `run`, such as results.")
    return found


@dataclass
class _Writer:
    """A bundle while it is written.

    Attributes:
        folder: folder of the bundle.
        workspace: where collections and models are looked for.
        files: files that may be weights, cards and code.
        runs: commands that evaluate, by their words without collections.
        trainings: commands that train, by the folder that they write.
        unrepeated: see `BundleManifest`.
        reads: hashes of the files that are read of each folder of weights, by its path.
        placed: path in the bundle of each folder of weights.
        needs: sources of collections and weights with their hashes, as lines of the README.
    """

    folder: Path
    workspace: Workspace
    files: FileSearch
    runs: dict[tuple[str, ...], BundledCommand] = field(default_factory=dict)
    trainings: dict[Path, BundledCommand] = field(default_factory=dict)
    unrepeated: dict[str, str] = field(default_factory=dict)
    reads: dict[str, dict[str, str]] = field(default_factory=dict)
    needs: dict[str, None] = field(default_factory=dict)
    placed: dict[Path, str] = field(default_factory=dict)

    def add_result(self, stored: Evaluation) -> None:
        """Copy a result, and add the command that repeats it, or the reason why none does."""
        record, source = stored.record, stored.folder
        if source is None:
            raise BenchError("an evaluation in memory has no files", "Give a folder of results.")
        target = f"recorded/{record.protocol.collection}/{record.model}/{source.name}"
        copied = [RESULT_FILE, SCORES_FILE, OVERLAY_FILE, *([] if record.recipe else [RUN_FILE])]
        for name in copied:
            if (source / name).exists():
                self._copy(source / name, f"{target}/{name}")
        self.needs |= dict.fromkeys(_describe_needs(record))
        try:
            fields = given_fields(find_request(stored, self.workspace, self.files))
            words, opens = self._relocate(fields, record, target)
        except BenchError as error:
            self.unrepeated[target] = f"{error}. {error.hint}".strip()
            return
        command = self.runs.setdefault(words, BundledCommand(words, []))
        command.makes.append(target)
        command.on.append(opens)

    def _relocate(
        self, fields: dict[str, Any], record: Result, target: str
    ) -> tuple[tuple[str, ...], str]:
        """Return the words of a command in the bundle without a collection, and the collection."""
        if record.recipe is None:
            fields["run"] = f"{target}/{RUN_FILE}"
            return typed_words("score", fields, "run"), fields["dataset"]
        hashes = {**record.recipe.files, **record.recipe.query_files}
        if record.recipe.adapter:
            hashes |= record.recipe.adapter.files
        (model,), (opens,) = fields["model"], fields.pop("names")
        fields["model"] = self._place(model, hashes)
        if "adapter" in fields:
            fields["adapter"] = self._place(fields["adapter"], hashes)
        return typed_words("run", fields), opens

    def _copy(self, source: Path, target: str) -> str:
        """Copy a file into the bundle, and return its path there."""
        if not source.is_file():
            raise BenchError(f"{source} is missing")
        path = self.folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        return target

    def _place(self, name: str, hashes: Mapping[str, str]) -> str:
        """Return what to type in the bundle for a model, whose files are copied or listed.

        ``hashes`` are those of its weights, or of its code, by name.
        """
        if found := READY_VECTORS.fullmatch(name):
            return name.replace(found[1], self._place(found[1], hashes))
        path = Path(name)
        if path.is_dir():
            return self._list_weights(path, hashes)
        if found := PYTHON_FILE.fullmatch(name):
            copied = self._copy_code(Path(found[1]), hashes)
            return f"{copied}:{found[2]}" if found[2] else copied
        if name.endswith(TOML) and path.is_file():
            return self._copy_card(path, hashes)
        if "+" in name and not is_url(name):
            return "+".join(self._place(part, {}) for part in name.split("+"))
        return name

    def _list_weights(self, path: Path, hashes: Mapping[str, str]) -> str:
        """Return the folder of weights in the bundle, and add the training that makes them."""
        path = path.resolve()
        if path in self.placed:
            return self.placed[path]
        inner = [f"{ADAPTER_FOLDER}/{name}" for name in hashes]
        named = [*hashes, *inner, CARD_FILE] if hashes else [each.name for each in path.iterdir()]
        files = [name for name in named if (path / name).is_file()]
        home = next((f for f in (path, path.parent) if (f / TRAINING_FILE).is_file()), path)
        record = _read_training(home)
        command = str(record.conditions.get("command", "")) if record else ""
        home = home.parent if command == "adapt" else home
        place = f"models/{path.relative_to(home.parent)}"
        wanted = {name: sha256_of_file(path / name) for name in files}
        if place in self.reads:
            raise BenchError(f"two folders of weights are called {place}", "Rename one of them.")
        self.placed[path], self.reads[place] = place, wanted
        if record:
            source = path if command == "adapt" else home
            self._copy(source / TRAINING_FILE, f"trainings/{place}/{TRAINING_FILE}")
            asked = record.conditions.get("request", {})
            try:
                self._add_training(home, command, asked, record.code, place)
            except BenchError as error:
                self.unrepeated[f"trainings/{place}"] = str(error)
        return place

    def _add_training(
        self,
        home: Path,
        command: str,
        asked: Mapping[str, Any],
        code: Mapping[str, Mapping[str, str]],
        place: str,
    ) -> None:
        """Add the command that trains into the folder ``home``, after those of what it reads."""
        if home in self.trainings:
            self.trainings[home].makes.append(f"trainings/{place}")
            return
        fields, preset = dict(asked), asked.get("preset", "")
        if not command or not isinstance(preset, str):
            raise BenchError("its record states no command: Python made it, or an older version")
        if preset.endswith(TOML):
            fields["preset"] = self._copy(Path(preset), f"presets/{Path(preset).name}")
        for name in {"model", "start", "objective", "method"} & fields.keys():
            fields[name] = self._place(fields[name], code.get(name, {}))
        if "adapters" in fields:
            fields["adapters"] = [self._place(name, {}) for name in fields["adapters"]]
        if settings := fields.pop("method_settings", {}):
            changes = {f"method.{name}": value for name, value in settings.items()}
            fields["changes"] = {**fields.get("changes", {}), **changes}
        positional = ("how", "adapters") if command == "compose" else ("preset",)
        words = typed_words(command, {**fields, "out": f"models/{home.name}"}, *positional)
        read = [*fields.get("on", ()), *fields.get("held_out", ())]
        self.trainings[home] = BundledCommand(words, [f"trainings/{place}"], read)

    def _copy_code(self, path: Path, hashes: Mapping[str, str]) -> str:
        """Copy a file of Python code and the modules of its folder that it imports."""
        if not path.is_file():
            raise BenchError(f"{path} is missing")
        place = f"code/{sha256_of_file(path)[:HASH_DIGITS]}"
        for name in hashes.keys() - {path.name}:
            module = path.parent.joinpath(*name.split("."))
            for file in (module.with_suffix(PYTHON), module / "__init__.py"):
                if file.is_file():
                    self._copy(file, f"{place}/{file.relative_to(path.parent)}")
        return self._copy(path, f"{place}/{path.name}")

    def _copy_card(self, path: Path, hashes: Mapping[str, str]) -> str:
        """Copy a card, whose paths become those of the bundle."""
        card, place = load_card(path), self._copy(path, f"cards/{path.name}")
        text = path.read_text(encoding="utf-8")
        stated = [card.checkpoint, card.query_checkpoint, card.encoder, card.reranker]
        stated += [card.model, *card.models]
        for name in filter(None, [*stated, card.adapter.path if card.adapter else ""]):
            file = str(path.parent / Path(name.partition(":")[0]).expanduser())
            if Path(file).exists():
                placed = self._place(file + "".join(name.partition(":")[1:]), hashes)
                text = text.replace(json.dumps(name), json.dumps(f"../{placed}"))
        (self.folder / place).write_text(text, encoding="utf-8")
        return place

    def _with_reads(self, command: BundledCommand) -> BundledCommand:
        """Return a command with the weights that its words, or a card in them, name."""
        text = " ".join(command.words)
        cards = [self.folder / word for word in command.words if word.startswith("cards/")]
        text += "".join(card.read_text(encoding="utf-8") for card in cards)
        made = {name.removeprefix("trainings/") for name in command.makes}
        reads = {
            path: each
            for path, each in self.reads.items()
            if re.search(rf"{re.escape(path)}(?![\w.-])", text)
        }
        others = {path: each for path, each in reads.items() if path not in made}
        return msgspec.structs.replace(command, reads=others)

    def finish(self, records: Sequence[Result]) -> BundleManifest:
        """Write the README, the versions of libraries and the manifest."""
        runs = [
            msgspec.structs.replace(each, words=("run", *dict.fromkeys(each.on), *each.words[1:]))
            if each.words[0] == "run"
            else each
            for each in self.runs.values()
        ]
        commands = tuple(map(self._with_reads, [*self.trainings.values(), *runs]))
        newest = max(records, key=lambda each: each.conditions.time).conditions
        versions = {
            name: version
            for record in sorted(records, key=lambda each: each.conditions.time)
            for name, version in record.conditions.libraries.items()
        }
        lock = "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
        (self.folder / LOCK).write_text(lock, encoding="utf-8")
        made_by = f"{newest.bench}, commit {newest.commit or 'unknown'}, Python {newest.python}"
        manifest = BundleManifest(made_by, commands, self.unrepeated, {})
        readme = _write_readme(manifest, list(self.needs))
        (self.folder / README).write_text(readme, encoding="utf-8")
        files = {
            path.relative_to(self.folder).as_posix(): sha256_of_file(path)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        manifest = msgspec.structs.replace(manifest, files=files)
        write_json(self.folder / MANIFEST, manifest)
        return manifest


def _read_training(folder: Path) -> TrainingRecord | None:
    """Return the record of the training in a folder, or None if there is none, or an older one."""
    try:
        return read_json(folder / TRAINING_FILE, TrainingRecord)
    except BenchError:
        return None


def _describe_needs(result: Result) -> Iterator[str]:
    """Yield the source of the collection and the weights of a result, with hashes, as lines."""
    protocol, recipe = result.protocol, result.recipe
    source = "not a published collection"
    if protocol.collection in dataset_names():
        facts = facts_for(protocol.collection)
        source = facts.hub or facts.homepage or facts.title
    yield (
        f"- {protocol.collection}, split {protocol.split} ({source}): sha256 of the corpus "
        f"`{protocol.corpus_sha256}`, queries `{protocol.queries_sha256}`, judgements "
        f"`{protocol.qrels_sha256}`"
    )
    if recipe and recipe.files:
        where = f"{recipe.checkpoint}@{recipe.revision}".strip("@") or "the code in `code/`"
        hashes = {**recipe.files, **(recipe.adapter.files if recipe.adapter else {})}
        weights = [f"{name} `{hashes[name]}`" for name in hashes if name.endswith(WEIGHT_SUFFIXES)]
        yield f"- {result.model} ({where}): {', '.join(weights) or 'no weights'}"


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

They are not in this folder.

{needs}
{unrepeated}"""


def _write_readme(manifest: BundleManifest, needs: Sequence[str]) -> str:
    commands = [shlex.join(["python", "-m", "bench", *each.words]) for each in manifest.commands]
    reasons = [f"- `{place}`: {reason}" for place, reason in manifest.unrepeated.items()]
    return README_TEXT.format(
        made_by=manifest.bench,
        commands="\n".join(f"    {command}" for command in commands) or "None.",
        needs="\n".join(needs),
        unrepeated="\n".join(["\n## Not repeated\n", *reasons, ""]) if reasons else "",
    )
