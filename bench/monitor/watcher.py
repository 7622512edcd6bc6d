"""Evaluates the checkpoints of a training, each once, and keeps their ledger."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.evaluate.pipeline import Options
from bench.monitor.collections import Opened
from bench.monitor.evaluating import (
    files_sha256,
    protocol_here,
    renamed,
    settings_of,
    stored_or_new,
)
from bench.monitor.held import held
from bench.monitor.ledger import Broken, Evaluated, Ledger, now
from bench.monitor.scanner import Files, Finished, Unfinished, model_folder
from bench.results.find import find_results
from bench.results.location import Place
from bench.store import VectorStore
from bench.store.store import folder_names
from bench.store.usage import remove, usage
from foundation.errors import BenchError
from retrievers.encoders.protocol import Encoder
from retrievers.models.model import Model

FAILURES = (BenchError, OSError)


@dataclass(frozen=True)
class Work:
    """How checkpoints are evaluated.

    Attributes:
        training: goes before the name of a checkpoint in results: ``retromae/checkpoint-500``.
        opened: collections.
        results: where results go.
        vectors: store of vectors.
        keep_vectors: whether those of a checkpoint stay when it is evaluated.
        held: where a checkpoint is kept while it is evaluated.
        open_model: from the folder of a checkpoint.
    """

    training: str
    opened: Sequence[Opened]
    measure: str
    choices: Options
    results: Place
    vectors: Path
    keep_vectors: bool
    held: Path
    open_model: Callable[[Path], tuple[Model, Encoder | None]]


@dataclass
class Watcher:
    """Deals with each checkpoint once, and again when its files change.

    Attributes:
        done: files of the checkpoints that were dealt with, by name.
        said: why checkpoints were not evaluated, by name.
        cut: checkpoint whose evaluation is going on, or was ended by Ctrl-C; "" for none.
    """

    work: Work
    ledger: Ledger
    done: dict[str, Files] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    cut: str = ""

    def is_new(self, checkpoint: Finished) -> bool:
        """Whether these files were not yet dealt with."""
        return self.done.get(checkpoint.name) != checkpoint.files

    def tell(self, unfinished: Sequence[Unfinished]) -> None:
        """Say once what is not finished; what is broken goes into the ledger."""
        for one in unfinished:
            if self.said.get(one.name) != one.why:
                state = "broken" if one.broken else "not complete"
                print(f"{one.name} is {state}, and left out: {one.why}", file=sys.stderr)
                self.said[one.name] = one.why
            if one.broken:
                self._add_broken(one.name, one.step, one.why)

    def evaluate(self, checkpoint: Finished) -> bool:
        """Evaluate on every collection; a checkpoint that fails is reported and left out.

        Returns:
            Whether the ledger has new evaluations.
        """
        self.done[checkpoint.name] = checkpoint.files
        self.cut = checkpoint.name
        fresh = self._try(checkpoint)
        self.cut = ""
        return fresh

    def _try(self, checkpoint: Finished) -> bool:
        try:
            with held(checkpoint, self.work.held) as folder:
                fresh = self._evaluate(checkpoint, folder)
        except FAILURES as error:
            self.said[checkpoint.name] = str(error)
            print(f"warning: {checkpoint.name} is left out: {error}", file=sys.stderr)
            self._add_broken(checkpoint.name, checkpoint.step, str(error))
            return False
        self.said.pop(checkpoint.name, None)
        return fresh

    def _add_broken(self, name: str, step: int, why: str) -> None:
        self.ledger.add(Broken(checkpoint=name, step=step, why=why, time=now()))

    def _evaluate(self, checkpoint: Finished, folder: Path) -> bool:
        model, encoder = self.work.open_model(model_folder(folder))
        model = renamed(model, f"{self.work.training}/{checkpoint.name}")
        if self.ledger.files_of(checkpoint.name) not in ("", files_sha256(model.recipe)):
            print(f"{checkpoint.name} has other files than before", file=sys.stderr)
        missing = [one for one in self.work.opened if not self._is_known(checkpoint, model, one)]
        for one in missing:
            self._evaluate_on(one, checkpoint, model, encoder)
        if missing:
            self._tidy(model)
        return bool(missing)

    def _is_known(self, checkpoint: Finished, model: Model, one: Opened) -> bool:
        fingerprint = model.recipe.for_dataset(one.dataset.name).fingerprint
        protocol = protocol_here(one, self.work.choices)
        asked = (checkpoint.name, fingerprint, protocol, self.work.measure)
        return self.ledger.find(*asked) is not None

    def _evaluate_on(
        self, one: Opened, checkpoint: Finished, model: Model, encoder: Encoder | None
    ) -> None:
        work, name = self.work, one.dataset.name
        stored = stored_or_new(
            one,
            model.for_dataset(name),
            encoder.for_dataset(name) if encoder else None,
            find_results(work.results, model.card.name),
            VectorStore(work.vectors),
            work.choices,
            work.results,
        )
        result = stored.result
        value = result.measures[work.measure]
        print(f"{checkpoint.name} on {name}: {work.measure} {value:.4f}", file=sys.stderr)
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
        names = [one.dataset.name for one in self.work.opened]
        recipes = [model.recipe.for_dataset(name) for name in names]
        mine = {folder for recipe in recipes for folder in folder_names(recipe)}
        for row in usage(self.work.vectors) if not self.work.keep_vectors else ():
            if row.fingerprint in mine:
                remove(self.work.vectors, row)


def _absolute(place: Place) -> str:
    return str(place.resolve() if isinstance(place, Path) else place)
