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
from bench.monitor.collections import Opened
from bench.monitor.evaluating import renamed, stored_or_new
from bench.results.find import find_results
from bench.store import VectorStore
from bench.training.adapt_on_collections import adapt_on
from bench.training.pretrain_on_collections import CorpusTexts
from foundation.errors import BenchError
from retrievers.models.card import card_names
from retrievers.models.model import Model, open_encoder, resolve_model
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
        device: ``auto`` or ``cpu``.
        report: told how far a training is.
        say: told what was done.
    """

    comparison: Comparison
    domains: Sequence[Opened]
    also: Sequence[Opened]
    out: Path
    store: VectorStore
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
        return self._evaluated(model, model.card.name)

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
            checkpoints.append(self._evaluated(renamed(model, folder.name), folder.name))
        apart = adaptation.method == "adapter"
        return Learnt(method, described(adaptation), checkpoints, losses, apart, seconds)

    def _start(self) -> Model:
        start = self.comparison.pretraining().start.model
        if not start:
            raise BenchError(
                "a sequence starts from a model that can be evaluated, not from a new one",
                '[train] start = { model = "minilm" }',
            )
        like = None if start in card_names() else self.comparison.evaluate.like
        return self._resolved(start, like or None)

    def _resolved(self, name: str, like: str | None) -> Model:
        use = self.comparison.evaluate
        return resolve_model(
            name,
            like=like,
            max_query_tokens=use.max_query_tokens,
            max_document_tokens=use.max_document_tokens,
        )

    def _evaluated(self, model: Model, label: str) -> Entrant:
        """A checkpoint on every collection; stored results are used again."""
        encoder, place = open_encoder(model, self.device), self.out / RESULTS
        known, entries = find_results(place, label), {}
        for one in (*self.domains, *self.also):
            name = one.dataset.name
            asked = (one, model.for_dataset(name), encoder.for_dataset(name), known)
            stored = stored_or_new(*asked, self.store, self.options, place)
            entries[name] = Entry.of(stored)
            self.say(f"{label} on {name}: {stored.result.measures[self.measure]:.4f}")
        return Entrant(label, entries)


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
