"""The folders, device and rules under which collections and models are opened and evaluated."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import platformdirs

from bench.evaluate.judging import check_relevant, mean_weights, resolve_measures
from bench.evaluate.pipeline import Job, OpenDataset
from bench.evaluate.retrieval import EvaluationOptions, LoadedModel
from bench.results.result import Evaluation
from bench.results.reuse import check_stored_values, find_equivalent, find_stored
from bench.store import VectorStore
from datasets_cfg.catalogue import (
    dataset_names,
    expand_names,
    is_suite,
    suite_names,
    user_folder,
    user_members,
)
from datasets_cfg.dataset import (
    FACTS_FILE,
    Dataset,
    name_in_results,
    open_dataset,
    remember_folder,
    take_first_queries,
)
from datasets_cfg.verify import Finding, check_counts, evaluation_findings
from foundation.errors import BenchError
from foundation.locations import Location
from retrievers.encoders.routed import open_encoder
from retrievers.models.card import card_names
from retrievers.models.model import SharedNetworks, resolve_model

DEFAULTS = EvaluationOptions()

VECTORS = "vectors"

logger = logging.getLogger(__name__)


def cache_folder(given: str | Path | None = None) -> Path:
    """Return the folder of the cache: as given, else BENCH_CACHE, else the user's.

    Raises:
        BenchError: it is a URL.
    """
    named = str(given or os.environ.get("BENCH_CACHE") or "")
    if "://" in named:
        raise BenchError(
            f"{named} is a URL: vectors are kept in a folder",
            "name a folder that the machines share, or encode with --engine ray; results may be "
            "at a URL: --out",
        )
    return Path(named) if named else Path(platformdirs.user_cache_path("retrieval-bench"))


def _log_finding(collection: str, finding: Finding) -> None:
    logger.warning("%s: %s: %d; %s", collection, finding.what, finding.count, finding.suggestion)


@dataclass(frozen=True)
class Workspace:
    """Folders, device and rules that hold for all evaluations of one command or program.

    Attributes:
        cache_dir: downloads, corpora and vectors.
        data_dir: where collections lie; None for BENCH_DATA, then a download.
        offline: download nothing.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        max_memory: bytes that this process may hold while it searches; None for most of what is
            free.
        allow_mismatch: evaluate a collection although it differs from the published one.
        vectors: folder of the vectors, below ``cache_dir`` where it is no absolute path.
        report_finding: told what is peculiar in a collection that is opened for evaluation.
    """

    cache_dir: Path
    data_dir: Path | None = None
    offline: bool = False
    device: str = "auto"
    max_memory: int | None = None
    allow_mismatch: bool = False
    vectors: str = VECTORS
    report_finding: Callable[[str, Finding], None] = _log_finding

    @cached_property
    def store(self) -> VectorStore:
        """The vectors that are kept."""
        return VectorStore(self.vectors_dir)

    @property
    def vectors_dir(self) -> Path:
        """Folder of the vectors that are kept."""
        return self.cache_dir / self.vectors

    def expand_names(self, names: Sequence[str]) -> list[str]:
        """Collections of what was typed: suites as their members, each once.

        Raises:
            BenchError: a name is neither a collection nor a suite nor a folder, or a member of a
                user's own suite has another name than its results would have.
        """
        for name in names:
            if name in card_names() and not user_folder(name, self.data_dir):
                problem = f"{name} is a model, and a collection is needed here"
                raise BenchError(problem, f"give it with --model {name}, after the collections")
        expanded = expand_names(names, self.data_dir)
        for suite in filter(is_suite, names):
            for member, folder in user_members(suite, self.data_dir).items():
                if (name := name_in_results(folder)) != member:
                    raise BenchError(
                        f"{suite}: results on the member {member} would be called {name}",
                        f'write name = "{member}" into {folder / FACTS_FILE}',
                    )
        return expanded

    def dataset(self, name: str, split: str | None = None, with_corpus: bool = True) -> Dataset:
        """A collection, found or downloaded, whatever its counts are.

        Args:
            with_corpus: look for its documents, too; a run file is scored without them.

        Raises:
            BenchError: it is not there, or cannot be read.
        """
        return open_dataset(
            name,
            cache_dir=self.cache_dir,
            data_dir=self.data_dir,
            split=split,
            download=not self.offline,
            with_corpus=with_corpus,
        )

    def datasets(self, names: Sequence[str], split: str | None = None) -> list[Dataset]:
        """Collections of what was typed, suites as their members, whatever their counts are.

        Each is read once in a process.

        Raises:
            BenchError: see `dataset`; or two folders have one name, by which results are known.
        """
        opened = [_opened_once(self, name, split) for name in self.expand_names(names)]
        for name, count in Counter(dataset.name for dataset in opened).items():
            if count > 1:
                raise BenchError(
                    f"two of the collections are called {name}, and results are kept by that name",
                    'write name = "another" into the dataset.toml of one',
                )
        return opened

    def open(self, asked: str | Path | Dataset, split: str | None = None) -> OpenDataset:
        """Open a collection for evaluation, and warn about anything that affects its scores.

        Raises:
            BenchError: it cannot be had; it is not the published one of its name, and
                ``allow_mismatch`` is off; or its corpus has no relevant document.
        """
        dataset = asked if isinstance(asked, Dataset) else self.dataset(str(asked), split)
        official = check_counts(dataset, self.allow_mismatch)
        check_relevant(dataset)
        if not isinstance(asked, Dataset):
            for finding in evaluation_findings(dataset):
                self.report_finding(dataset.name, finding)
            remember_folder(dataset)
        return OpenDataset(dataset, official)

    def open_first(self, name: str, count: int, split: str | None = None) -> OpenDataset:
        """The first queries of a collection with a small corpus, for a first try.

        Raises:
            BenchError: as `open`, or see `take_first_queries`.
        """
        dataset = take_first_queries(self.open(name, split).dataset, count)
        check_relevant(dataset)
        remember_folder(dataset)
        return OpenDataset(dataset, False)

    def open_judgements(self, name: str, split: str | None = None) -> OpenDataset:
        """A collection whose judgements score a run file; documents are not looked for.

        Raises:
            BenchError: as `open`.
        """
        dataset = self.dataset(name, split, with_corpus=False)
        official = check_counts(dataset, self.allow_mismatch, with_corpus=False)
        remember_folder(dataset)
        return OpenDataset(dataset, official)

    def weights(self, typed: Sequence[str]) -> dict[str, float]:
        """Weight of each collection, by its own name, in the mean of what was typed."""
        shares = mean_weights(typed)
        return {
            dataset.name: shares[dataset.name if dataset.name in shares else name]
            for name, dataset in zip(self.expand_names(typed), self.datasets(typed), strict=True)
        }

    def load(
        self, name: str, networks: SharedNetworks | None = None, **settings: Any
    ) -> LoadedModel:
        """A model with its encoder; weights are read at the first text.

        Args:
            bases: adapters that are opened with the same one share the weights of their base.
            settings: instead of the card's, as of `resolve_model`.

        Raises:
            BenchError: no such model, or one that cannot be used.
        """
        if name in (*dataset_names(), *suite_names()) and not Path(name).exists():
            problem = f"{name} is a collection or suite, and a model is needed here"
            raise BenchError(problem, "name collections first, and models after --model")
        model = resolve_model(name, **settings)
        if model.recipe.kind == "bm25":
            return LoadedModel(model, None)
        return LoadedModel(model, open_encoder(model, self.device, networks=networks))

    def prepare(
        self,
        dataset: OpenDataset,
        model: LoadedModel,
        options: EvaluationOptions = DEFAULTS,
        out: Location | None = None,
        known: Iterable[Evaluation] | None = None,
    ) -> Job:
        """Check an evaluation once, so that `bench.evaluate.pipeline.evaluate` can trust it.

        Args:
            out: where a result of this program, these libraries and this kind of machine is looked
                for.
            known: results among which one of the same scores is looked for, from any machine.

        Raises:
            BenchError: a measure that cannot be computed, a model that cannot be used like this,
                an index that is of another one, or too little memory; a source of the corpus
                changed since it was built; or a known result contradicts itself.
        """
        job = Job(
            opened=dataset,
            model=model,
            options=options,
            store=self.store,
            device=self.device,
            max_memory=self.max_memory,
            measures=resolve_measures(dataset.dataset, options.measures, options.depth),
        )
        stored = None
        if known is not None:
            stored = find_equivalent(job, known)
            if stored:
                check_stored_values(stored, job.dataset)
        elif out is not None:
            stored = find_stored(job, out)
        if stored:
            job.dataset.corpus.check()
            return replace(job, stored=stored)
        return replace(job, memory_bytes=job.retriever.check(job.dataset, job.protocol.depth))

    def __getstate__(self) -> dict[str, Any]:
        """Without the opened store: another process opens it anew."""
        return {name: value for name, value in self.__dict__.items() if name != "store"}


@cache
def _opened_once(workspace: Workspace, name: str, split: str | None) -> Dataset:
    return workspace.dataset(name, split)
