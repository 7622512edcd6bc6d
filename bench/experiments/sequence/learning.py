"""Learn a sequence in each way, and evaluate every checkpoint as soon as it is there.

Trainings and results that are there are used again, so that a comparison that was killed goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.compare.panels import Entrant, Entry
from bench.evaluate.pipeline import Options
from bench.experiments.sequence.comparing import Learnt
from bench.experiments.sequence.settings import Comparison
from bench.results.find import find_results
from bench.training.adapt_on_collections import adapt_on
from bench.training.pretrain_on_collections import CorpusTexts
from bench.workspace import LoadedModel, OpenDataset, Workspace
from foundation.errors import BenchError
from retrievers.models.card import card_names
from retrievers.training.continual.continual import Adaptation, Domain, Report, check
from retrievers.training.engine.curve import LossPoint, read_curve
from retrievers.training.pretrain.pretrain import CURVE_FILE

RESULTS, MODELS = "results", "models"


@dataclass(frozen=True)
class Work:
    """What is done, and where.

    Attributes:
        domains, also: the open collections.
        out: folder of the comparison: models, results and the report.
        measure, options: of evaluations.
        device: of trainings, ``auto`` or ``cpu``.
        space: where collections, models and vectors are.
        report: told how far a training is.
        say: told what was done.
    """

    comparison: Comparison
    domains: Sequence[OpenDataset]
    also: Sequence[OpenDataset]
    out: Path
    space: Workspace
    measure: str
    options: Options
    device: str
    save_every: int
    report: Report
    say: Callable[[str], None]

    def check(self) -> None:
        """Refuse what cannot work before any work.

        Raises:
            BenchError: a start, a method or a preset that cannot be used.
        """
        preset = self.comparison.pretraining()
        domains = [
            Domain(one.dataset.name, CorpusTexts([one.dataset.corpus])) for one in self.domains
        ]
        for adaptation in self.comparison.methods.values():
            check(preset, domains, adaptation)
        self._start()

    def base(self) -> Entrant:
        """What all sequences start from, evaluated."""
        model = self._start()
        return self._evaluated(model)

    def learn(self, method: str) -> Learnt:
        """One sequence: train on a domain, evaluate, go on with the next."""
        adaptation, seconds = self.comparison.methods[method], 0.0
        checkpoints: list[Entrant] = []
        losses: list[float] = []
        for count in range(1, len(self.domains) + 1):
            trained = adapt_on(
                self.comparison.pretraining(),
                [one.dataset for one in self.domains[:count]],
                self.out / MODELS / method,
                adaptation,
                device=self.device,
                save_every=self.save_every,
                report=self.report,
            )[-1]
            seconds += trained.seconds
            folder = Path(trained.folder)
            losses.append(last_loss(read_curve(folder / CURVE_FILE)))
            model = self._resolved(trained.folder, self.comparison.like(method))
            checkpoints.append(self._evaluated(model.renamed(folder.name)))
        apart = adaptation.method == "adapter"
        return Learnt(method, described(adaptation), checkpoints, losses, apart, seconds)

    def _start(self) -> LoadedModel:
        start = self.comparison.pretraining().start.model
        if not start:
            raise BenchError(
                "a sequence starts from a model that can be evaluated, not from a new one",
                '[train] start = { model = "minilm" }',
            )
        like = None if start in card_names() else self.comparison.evaluate.like
        return self._resolved(start, like or None)

    def _resolved(self, name: str, like: str | None) -> LoadedModel:
        use = self.comparison.evaluate
        return self.space.load(
            name,
            like=like,
            max_query_tokens=use.max_query_tokens,
            max_document_tokens=use.max_document_tokens,
        )

    def _evaluated(self, model: LoadedModel) -> Entrant:
        """A checkpoint on every collection; stored results are used again."""
        place = self.out / RESULTS
        known, entries = find_results(place, model.name), {}
        for dataset in (*self.domains, *self.also):
            stored = self.space.stored_or_new(dataset, model, self.options, known, place)
            entries[dataset.name] = Entry.of(stored)
            self.say(f"{model.name} on {dataset.name}: {stored.result.measures[self.measure]:.4f}")
        return Entrant(model.name, entries)


def last_loss(curve: Sequence[LossPoint]) -> float:
    """Loss of masked language modelling without what a method adds, over the last tenth."""
    last = curve[-max(1, len(curve) // 10) :]
    return fmean(point.losses.get("mlm", point.losses["loss"]) for point in last)


def described(adaptation: Adaptation) -> str:
    """A method with what matters of its settings."""
    measured = f"measured on {adaptation.measured} texts"
    return {
        "plain": "nothing against forgetting",
        "ewc": f"EWC, strength {adaptation.strength:g}, {measured}",
        "das": f"DAS, {adaptation.soften} softened, {measured}",
        "adapter": f"{adaptation.adapter} for each domain",
    }[adaptation.method]
