"""Evaluates the checkpoints of a training, each once, and keeps their ledger."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.evaluate.pipeline import Options
from bench.monitor.held import held
from bench.monitor.identity import files_sha256, settings_of
from bench.monitor.ledger import Broken, Evaluated, Ledger, now
from bench.monitor.scanner import Files, FinishedCheckpoint, Unfinished, model_folder
from bench.results.find import find_results
from bench.results.location import Place
from bench.store.store import folder_names
from bench.store.usage import remove, usage
from bench.workspace import LoadedModel, OpenDataset, Workspace, protocol_here
from foundation.errors import BenchError
from retrievers.models.model import Model

FAILURES = (BenchError, OSError)


@dataclass(frozen=True)
class WatchSettings:
    """Settings under which checkpoints are evaluated.

    Attributes:
        training: goes before the name of a checkpoint in results: ``retromae/checkpoint-500``.
        opened: collections.
        results: where results go.
        space: where collections, models and vectors are.
        keep_vectors: whether those of a checkpoint stay when it is evaluated.
        held: where a checkpoint is kept while it is evaluated.
        open_model: from the folder of a checkpoint.
    """

    training: str
    opened: Sequence[OpenDataset]
    measure: str
    options: Options
    results: Place
    space: Workspace
    keep_vectors: bool
    held: Path
    open_model: Callable[[Path], LoadedModel]


@dataclass
class Watcher:
    """Deals with each checkpoint once, and again when its files change.

    Attributes:
        done: files of the checkpoints that were dealt with, by name.
        reported: why checkpoints were not evaluated, by name.
        interrupted: checkpoint whose evaluation is going on, or was ended by Ctrl-C; "" for none.
    """

    work: WatchSettings
    ledger: Ledger
    done: dict[str, Files] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    interrupted: str = ""

    def is_new(self, checkpoint: FinishedCheckpoint) -> bool:
        """True until these very files are dealt with."""
        return self.done.get(checkpoint.name) != checkpoint.files

    def report_incomplete(self, unfinished: Sequence[Unfinished]) -> None:
        """Report each incomplete checkpoint once; a broken one goes into the ledger."""
        for checkpoint in unfinished:
            if self.reported.get(checkpoint.name) != checkpoint.why:
                state = "broken" if checkpoint.broken else "not complete"
                print(
                    f"{checkpoint.name} is {state}, and left out: {checkpoint.why}", file=sys.stderr
                )
                self.reported[checkpoint.name] = checkpoint.why
            if checkpoint.broken:
                self._add_broken(checkpoint.name, checkpoint.step, checkpoint.why)

    def evaluate(self, checkpoint: FinishedCheckpoint) -> bool:
        """Evaluate on every collection; a checkpoint that fails is reported and left out.

        Returns:
            Whether the ledger has new evaluations.
        """
        self.done[checkpoint.name] = checkpoint.files
        self.interrupted = checkpoint.name
        fresh = self._try(checkpoint)
        self.interrupted = ""
        return fresh

    def _try(self, checkpoint: FinishedCheckpoint) -> bool:
        try:
            with held(checkpoint, self.work.held) as folder:
                fresh = self._evaluate(checkpoint, folder)
        except FAILURES as error:
            self.reported[checkpoint.name] = str(error)
            print(f"warning: {checkpoint.name} is left out: {error}", file=sys.stderr)
            self._add_broken(checkpoint.name, checkpoint.step, str(error))
            return False
        self.reported.pop(checkpoint.name, None)
        return fresh

    def _add_broken(self, name: str, step: int, why: str) -> None:
        self.ledger.add(Broken(checkpoint=name, step=step, why=why, time=now()))

    def _evaluate(self, checkpoint: FinishedCheckpoint, folder: Path) -> bool:
        loaded = self.work.open_model(model_folder(folder))
        loaded = loaded.renamed(f"{self.work.training}/{checkpoint.name}")
        model = loaded.model
        if self.ledger.files_of(checkpoint.name) not in ("", files_sha256(model.recipe)):
            print(f"{checkpoint.name} has other files than before", file=sys.stderr)
        missing = [
            dataset
            for dataset in self.work.opened
            if not self._is_known(checkpoint, model, dataset)
        ]
        for dataset in missing:
            self._evaluate_on(dataset, checkpoint, loaded)
        if missing:
            self._tidy(model)
        return bool(missing)

    def _is_known(self, checkpoint: FinishedCheckpoint, model: Model, dataset: OpenDataset) -> bool:
        fingerprint = model.recipe.for_dataset(dataset.name).fingerprint
        protocol = protocol_here(dataset, self.work.options)
        asked = (checkpoint.name, fingerprint, protocol, self.work.measure)
        return self.ledger.find(*asked) is not None

    def _evaluate_on(
        self, dataset: OpenDataset, checkpoint: FinishedCheckpoint, loaded: LoadedModel
    ) -> None:
        work, model = self.work, loaded.model
        known = find_results(work.results, loaded.name)
        space = replace(work.space)  # whose store lets go of the vectors when it ends
        stored = space.stored_or_new(dataset, loaded, work.options, known, work.results)
        result = stored.result
        value = result.measures[work.measure]
        print(f"{checkpoint.name} on {dataset.name}: {work.measure} {value:.4f}", file=sys.stderr)
        self.ledger.add(
            Evaluated(
                checkpoint=checkpoint.name,
                step=checkpoint.step,
                files_sha256=files_sha256(model.recipe),
                settings=settings_of(model.recipe),
                fingerprint=result.fingerprint,
                protocol=result.protocol,
                measure=work.measure,
                value=value,
                result=_absolute(stored.folder),
                time=now(),
            )
        )

    def _tidy(self, model: Model) -> None:
        """Remove the vectors of a checkpoint: those of a long training would fill the disk."""
        names, vectors = (
            [dataset.name for dataset in self.work.opened],
            self.work.space.vectors_dir,
        )
        recipes = [model.recipe.for_dataset(name) for name in names]
        mine = {folder for recipe in recipes for folder in folder_names(recipe)}
        for row in usage(vectors) if not self.work.keep_vectors else ():
            if row.fingerprint in mine:
                remove(vectors, row)


def _absolute(place: Place) -> str:
    return str(place.resolve() if isinstance(place, Path) else place)
