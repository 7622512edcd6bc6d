"""Workspace: folders, device and rules for opening and evaluating collections and models."""

import itertools
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from attrs import evolve

from bench.evaluation.judging import check_relevant, mean_weights, resolve_measures
from bench.evaluation.pipeline import Job, OpenDataset
from bench.evaluation.registry import open_retriever
from bench.evaluation.result_record import Evaluation
from bench.evaluation.retriever import EvaluationOptions, Resources, Retriever
from bench.evaluation.system_retriever import SystemRetriever
from bench.evaluation.vector_retriever import VectorRetriever
from bench.requests.evaluating import EvaluationFields
from bench.requests.fields import FolderFields, Request
from bench.result_store.result import (
    UncheckedScores,
    check_stored_values,
    find_equivalent,
    find_stored,
)
from bench.store.shards import ignore_read_only
from bench.store.store import VectorStore
from datasets_cfg.catalogue import (
    dataset_names,
    expand_names,
    is_suite,
    suite_names,
    user_folder,
    user_members,
)
from datasets_cfg.dataset import (
    METADATA_FILE,
    Dataset,
    name_in_results,
    open_dataset,
    remember_folder,
    take_first_queries,
)
from datasets_cfg.download import folder_of_table, is_training_data
from datasets_cfg.verification import check_counts, evaluation_findings
from foundation.errors import BenchError
from foundation.files import cache_folder, hash_records
from retrievers.encoders.endpoint import EndpointEncoder, check_norms, check_same_server
from retrievers.encoders.objects import wrap_encoder
from retrievers.encoders.search_system import SearchSystem, is_search
from retrievers.encoders.tokens import probe_texts
from retrievers.models.card import Card, Compression, Recipe, card_names
from retrievers.models.kinds import KINDS
from retrievers.models.names import card_of_endpoint, is_card, is_url
from retrievers.models.resolve import CARD_DECIDES, Model, resolve_endpoint, resolve_model
from retrievers.models.settings import ModelSettings

DEFAULTS = EvaluationOptions()

# Fields of a workspace that are those of a request, if it has them.
REQUESTED = ("data_dir", "offline", "device", "max_memory", "allow_mismatch", "trust_code")
VECTORS = "vectors"
TOLD = "told"  # folder of marks of notes in the cache

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workspace:
    """Folders, device and rules for all evaluations of one command or program.

    Attributes:
        cache_dir: folder of downloads, corpora and vectors.
        data_dir: folder of collections; None for BENCH_DATA, then a download.
        offline: download nothing.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        max_memory: memory limit of this process in bytes; None for most of the free memory.
        allow_mismatch: evaluate a collection even if it differs from the published one.
        vectors: folder of the vectors, relative to ``cache_dir``.
        trust_code: allow encoder code that is not of this program in an experiment.
    """

    cache_dir: Path
    data_dir: Path | None = None
    offline: bool = False
    device: str = "auto"
    max_memory: int | None = None
    allow_mismatch: bool = False
    vectors: str = VECTORS
    trust_code: bool = False

    @cached_property
    def store(self) -> VectorStore:
        """Stored vectors."""
        return VectorStore(self.vectors_dir)

    @property
    def resources(self) -> Resources:
        """What searches may use."""
        return Resources(self.store, self.device, self.max_memory)

    @property
    def vectors_dir(self) -> Path:
        """Folder of the stored vectors."""
        return self.cache_dir / self.vectors

    def expand_names(self, names: Sequence[str], files: bool = False) -> list[str]:
        """Return the collections that ``names`` stand for, each once, suites as their members.

        With ``files``, training files are accepted, too.

        Raises:
            BenchError: a name is unknown, or a member of a user's suite would have a different name
                in results.
        """
        if files and any(map(is_training_data, names)):
            parts = [[n] if is_training_data(n) else self.expand_names([n]) for n in names]
            return list(dict.fromkeys(itertools.chain.from_iterable(parts)))
        for name in names:
            if name in card_names() and not user_folder(name, self.data_dir):
                problem = f"{name} is a model, but a collection is needed here"
                raise BenchError(problem, "Run `bench list datasets` for the names of collections.")
        expanded = expand_names(map(folder_of_table, names), self.data_dir)
        for suite in filter(is_suite, names):
            for member, folder in user_members(suite, self.data_dir).items():
                if (name := name_in_results(folder)) != member:
                    problem = f"{suite}: results on the member {member} would be called {name}"
                    raise BenchError(
                        problem, f'Write name = "{member}" into {folder / METADATA_FILE}'
                    )
        return expanded

    def dataset(
        self,
        name: str,
        split: str | None = None,
        with_corpus: bool = True,
        with_judgements: bool = True,
    ) -> Dataset:
        """Open a collection, downloading it if necessary, whatever its counts are.

        Args:
            name: name, folder or training file.
            split: judgements to use; None for the declared ones.
            with_corpus: find its documents, too. They are not needed to score a run file.
            with_judgements: read its queries and judgements. They are not needed to pre-train.
        """
        return open_dataset(
            name,
            cache_dir=self.cache_dir,
            data_dir=self.data_dir,
            split=split,
            download=not self.offline,
            with_corpus=with_corpus,
            with_judgements=with_judgements,
        )

    def documents(self, names: Sequence[str]) -> list[Dataset]:
        """Open collections, suites, folders and files for their documents alone."""
        expanded = self.expand_names(names, files=True)
        return [self.dataset(name, with_judgements=False) for name in expanded]

    def datasets(self, names: Sequence[str], split: str | None = None) -> list[Dataset]:
        """Open the collections that ``names`` stand for, each once per process.

        Raises:
            BenchError: see `dataset`; or two folders have the same name in results.
        """
        opened = [_opened_once(self, name, split) for name in self.expand_names(names)]
        hint = 'Write name = "another" into the dataset.toml of one.'
        refuse_duplicates((dataset.name for dataset in opened), hint)
        return opened

    def open(
        self,
        source: str | Path | Dataset,
        split: str | None = None,
        limit: int | None = None,
        with_corpus: bool = True,
    ) -> OpenDataset:
        """Open a collection and warn about anything that affects its scores.

        Args:
            source: name, folder or dataset.
            split: judgements to use; None for the declared ones.
            limit: only so many queries, with a small corpus; None for all.
            with_corpus: find its documents, too. They are not needed to score a run file.

        Raises:
            BenchError: the collection is missing, is not the published one of its name while
                ``allow_mismatch`` is off, or has no relevant document.
        """
        dataset = source if isinstance(source, Dataset) else None
        named = dataset is None
        dataset = dataset or self.dataset(folder_of_table(str(source)), split, with_corpus)
        with_corpus = with_corpus and dataset.has_documents
        official: bool | None = check_counts(dataset, self.allow_mismatch, with_corpus)
        if with_corpus:
            check_relevant(dataset)
        if named:
            for finding in evaluation_findings(dataset, with_corpus):
                text = finding.text(dataset.name)
                if finding.severity == "warning":
                    logger.warning("%s", text)
                elif not (finding.is_told_once and _was_told(dataset.cache_dir, text)):
                    print(f"{finding.severity}: {text}", file=sys.stderr)
        if limit:
            official = False if dataset.name in dataset_names() else None
            dataset = take_first_queries(dataset, limit)
            check_relevant(dataset)
        if limit or named:
            remember_folder(dataset)
        asked = {"split": split, "limit": limit, "allow_mismatch": self.allow_mismatch}
        return OpenDataset(dataset, official, {"names": source, **asked} if named else {})

    def weights(self, typed: Sequence[str]) -> dict[str, float]:
        """Return the weight of each collection in the mean of the names ``typed``."""
        shares = mean_weights(typed)
        return {
            dataset.name: shares[dataset.name if dataset.name in shares else name]
            for name, dataset in zip(self.expand_names(typed), self.datasets(typed), strict=True)
        }

    def load(self, name: str, settings: ModelSettings = CARD_DECIDES) -> Retriever:
        """Load a model. Weights are read at the first text.

        The vectors of fixed texts are stored when a server is first used, and compared each time.

        Args:
            name: card, folder, Hub repository, or URL of a server.
            settings: replace those of the card.

        Raises:
            BenchError: the model is unknown, or cannot be used.
            DriftError: the server of the model changed since it was first used.
        """
        if name in (*dataset_names(), *suite_names()) and not Path(name).exists():
            problem = f"{name} is a collection or suite, but a model is needed here"
            raise BenchError(problem, "Run `bench list models` for the names of models.")
        retriever = open_retriever(resolve_model(name, settings), self.resources)
        retriever = replace(retriever, asked={"model": name, **settings.changed})
        for each in retriever.encoders:
            if each.recipe.traits.is_remote:
                self._check_server(each, settings.like if is_url(name) else "")
        return retriever

    def _check_server(self, model: Retriever, like: str | None) -> None:
        """Raise if a server changed since it was first used, or if norms leave its use open."""
        encoder = cast(EndpointEncoder, model.require_encoder())
        now = encoder.server.encode_queries(probe_texts())
        if like != "":
            check_norms(model.recipe, now, like)
        server = encoder.server.recipe
        known = self.store.remember(server, "probe", lambda: {"vectors": now.tolist()})
        check_same_server(model.name, np.array(known["vectors"], np.float32), now)

    def prepare(
        self,
        dataset: OpenDataset,
        model: Retriever,
        options: EvaluationOptions = DEFAULTS,
        out: Path | None = None,
        known: Iterable[Evaluation] | None = None,
    ) -> Job:
        """Check an evaluation so that `bench.evaluation.pipeline.evaluate` can rely on it.

        A result of the same program, libraries and kind of machine is looked up in ``out``; or one
        with the same scores, from any machine, in ``known``.

        Raises:
            BenchError: a measure that cannot be computed, an option that the model does not honour,
                a model or index that does not fit, too little memory, or a known result that
                contradicts itself.
        """
        rescore = model.recipe.compression.rescore
        measures = resolve_measures(dataset.dataset, options.measures, options.depth, rescore)
        job = Job(dataset, model.configured(options, self.resources), measures)
        identified = job.model.identified(dataset.dataset, job.protocol.depth)
        job = replace(job, model=identified)
        stored = find_equivalent(job, known or ())
        if stored:
            unchecked = UncheckedScores()
            with unchecked.collect():
                check_stored_values(stored, job.dataset)
            unchecked.warn()
        elif out is not None:
            stored = find_stored(job, out)
        if stored:
            return replace(job, stored=stored)
        return replace(job, memory_bytes=job.retriever.check(job.dataset, job.protocol.depth))


def _was_told(cache_dir: Path, text: str) -> bool:
    """Return whether a note was told before, and remember it."""
    mark = cache_dir / TOLD / hash_records([[text]])[:16]
    is_known = mark.exists()
    with ignore_read_only():
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return is_known


def refuse_duplicates(names: Iterable[str], hint: str = "Give it once.") -> None:
    """Raise a `BenchError` with ``hint`` if a model or collection is named twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise BenchError(f"{name} is given {times} times", hint)


def open_workspace(request: FolderFields) -> Workspace:
    """Return the workspace of a request, with its device, memory and rules if it has any."""
    given = {name: getattr(request, name) for name in REQUESTED if hasattr(request, name)}
    return Workspace(cache_folder(request.cache_dir), **given)


def load_models(workspace: Workspace, names: Sequence[Any], fields: Request) -> list[Retriever]:
    """Load models, or wrap Python objects.

    ``like`` applies only to models without a card, and ``endpoint_model`` only to URLs, if there
    are such models.

    Raises:
        BenchError: a model cannot be used, or a setting applies to none of the models.
    """
    models: list[Retriever] = []
    typed = [str(name) for name in names if isinstance(name, str | Path)]
    only_cards, has_url = all(map(is_card, typed)), any(map(is_url, typed))
    for model in names:
        if not isinstance(model, str | Path):
            models.append(_wrap_object(model, fields, workspace.resources))
            continue
        name = str(model)
        settings = ModelSettings.of(fields)
        if is_card(name) and not only_cards:
            settings = evolve(settings, like=None)
        if has_url and not is_url(name):
            settings = evolve(settings, endpoint_model=None)
        models.append(workspace.load(name, settings))
    return models


def open_endpoint(url: str, endpoint_model: str | None, model: Retriever) -> EndpointEncoder:
    """Return an encoder that sends texts of ``model`` to a server, to compare their vectors.

    The host of the ``url`` is its name. ``endpoint_model`` is the name of the model on the server;
    None for the checkpoint's.
    """
    card = card_of_endpoint(
        url,
        endpoint_model or model.recipe.checkpoint or model.name,
        name=url.partition("://")[2].partition("/")[0].rpartition("@")[2] or "--served",
        prompts=model.card.prompts,
        title_join="none" if model.card.title_join == "none" else "space",
    )
    return EndpointEncoder(resolve_endpoint(card).recipe, card).with_dimension()


def _wrap_object(model: Any, fields: Request, resources: Resources) -> Retriever:
    """Wrap a Python object that encodes or searches, and raise if a setting of cards is given."""
    searches = is_search(model)
    name = fields.name if isinstance(fields, EvaluationFields) else ""
    name = name or (SearchSystem(model, "").stated("name") if searches else "")
    if not name or not isinstance(fields, EvaluationFields):
        problem = f"a {type(model).__name__} needs a name for its results"
        raise BenchError(problem, 'Use bench.evaluate(model, dataset, name="my-model")')
    settings = ModelSettings.of(fields)
    if changed := [key for key in settings.changed if key not in Compression.__struct_fields__]:
        problem = f"{', '.join(changed)} applies to model cards, and {name} is a Python object"
        raise BenchError(problem, "Set it on the object itself.")
    compression = settings.compression()
    if searches:
        of_encoders = {"fingerprint": fields.fingerprint, "similarity": fields.similarity}
        KINDS["system"].check_options(name, [key for key, value in of_encoders.items() if value])
        card = Card(name=name, title=name, kind="system")
        recipe = Recipe(model=name, kind="system", dim=0, compression=compression)
        return SystemRetriever.of(Model(card, recipe), model, resources)
    wrapped, encoder = wrap_encoder(model, name, fields.fingerprint, fields.similarity)
    recipe = msgspec.structs.replace(wrapped.recipe, compression=compression)
    return VectorRetriever.of(replace(wrapped, recipe=recipe), encoder, resources)


_opened_once = cache(Workspace.dataset)
