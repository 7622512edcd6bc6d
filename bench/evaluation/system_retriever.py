"""Search systems of the user as retrievers, which are asked for their rankings.

A system changes without its code. Its state is what it answers to ten queries of the collection,
which is part of its recipe next to its version. Responses are kept for each state.
"""

import inspect
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from bench.evaluation.asking import Caller, Response, ResponseFile, open_responses
from bench.evaluation.index_search import check_memory, resident_bytes
from bench.evaluation.judging import apply_protocol, resolve_measures, search_depth
from bench.evaluation.responses import find_short_measures, measure_latency, read_responses
from bench.evaluation.result_record import SHORT, Timings
from bench.evaluation.retriever import EvaluationOptions, Resources, Retriever, SearchStatistics
from bench.evaluation.runs import Run, parent_id
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, DriftError
from foundation.files import hash_records
from retrievers.encoders.search_system import SearchSystem
from retrievers.models.card import STATE, Option, Recipe, replace_fields
from retrievers.models.kinds import KINDS
from retrievers.models.resolve import Model

RESPONSES = "responses"  # folder of the cache
TIMEOUT_S = 60.0  # of a call
PROBED = 10  # queries
UNKNOWN_IN_PROBE = 0.5  # share of documents that the collection may lack: ten queries are few
NO_VERSION = (
    "states no version, so a change that ten queries do not show goes unnoticed: give its object "
    "the attribute version"
)
ROW_BYTES = 150  # of a document in memory: id, score and their objects
DIGITS = 12  # of a state
DEEPEST = 64  # times the depth, when passages of few documents fill the ranks


@dataclass(frozen=True, kw_only=True)
class SystemRetriever(Retriever):
    """A search system of the user.

    Attributes:
        system: the system.
        probe: its responses to the queries that tell its state, by id.
    """

    system: SearchSystem
    probe: Mapping[str, Response] = field(default_factory=dict)

    @classmethod
    def open(cls, model: Model, resources: Resources) -> Self:
        """Refuse a card of this kind: a search system is an object in Python or in a file."""
        problem = f"{model.card.name} names no file with a search system"
        raise BenchError(problem, "Pass --model path/to/file.py:NAME.")

    @classmethod
    def of_file(cls, model: Model, made: Any, resources: Resources) -> Self:
        """Return the retriever of an object of a file, which is closed when the program ends."""
        retriever = cls.of(model, made, resources)
        retriever.system.close_at_exit()
        own_name = retriever.system.stated("name")
        return retriever.with_name(own_name) if own_name else retriever

    @classmethod
    def of(cls, model: Model, made: Any, resources: Resources) -> Self:
        """Return the retriever of an object that searches.

        Raises:
            BenchError: ``model`` was resolved with options that a system does not honour.
        """
        stated, name = model.recipe, model.card.name
        typed = {**stated.compression.settings, "store_dtype": stated.store_dtype}
        given = [key for key, value in typed.items() if value not in ("", "float32")]
        KINDS["system"].check_options(name, given)
        code = stated.encoder or _hash_source(made)
        options: dict[str, Option] = {"code": code} if code else {}
        recipe = Recipe(model=name, kind="system", dim=0, files=stated.files, options=options)
        card = replace_fields(model.card, {"kind": "system"})
        system = SearchSystem(made, name)
        return cls(model=Model(card, recipe), resources=resources, system=system)

    def with_name(self, name: str) -> Self:
        """Return this system with another ``name`` in results and in messages."""
        return replace(super().with_name(name), system=replace(self.system, name=name))

    def configured(self, options: EvaluationOptions, resources: Resources) -> Self:
        """Return this system with other options, of which passages change its rankings."""
        settings = {"version": self.system.stated("version"), "passages": options.passages}
        return super().configured(options, resources)._with_options(settings)

    def _with_options(self, settings: Mapping[str, str]) -> Self:
        """Return this system with the ``settings`` in its recipe that are not empty."""
        known = {**self.recipe.options, **settings}
        options = {name: value for name, value in known.items() if value}
        recipe = msgspec.structs.replace(self.recipe, options=options)
        return replace(self, model=replace(self.model, recipe=recipe))

    def identified(self, dataset: Dataset, depth: int) -> Self:
        """Return this system with its state: its responses to some queries of ``dataset``."""
        probe = self._ask_probe(dataset, search_depth(dataset, depth))
        return replace(self._with_options({STATE: self._digest(probe, dataset)}), probe=probe)

    def documents(self) -> Mapping[str, Mapping[str, str]]:
        """Return the documents that the system itself has, by id."""
        return self.system.documents()

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of a search in bytes, and raise if it exceeds the limit."""
        rows = len(dataset.queries) * min(search_depth(dataset, depth), _size(dataset))
        needed = resident_bytes() + rows * ROW_BYTES
        documents = len(dataset.corpus) if dataset.has_documents else rows
        return check_memory(self.name, needed, self.resources.max_memory, documents)

    def search(self, dataset: Dataset, depth: int) -> tuple[Run, SearchStatistics]:
        """Return the rankings of all queries, of which those without a response are asked."""
        k, started, warnings = search_depth(dataset, depth), time.perf_counter(), list[str]()
        with open_responses(self._path(dataset, k)) as kept:
            for query, response in self.probe.items():
                if query not in kept.responses:
                    kept.add(response)
            self._ask_missing(dataset, depth, kept)
            if not self.probe.keys() >= set(kept.added):
                warnings += self._confirm_state(dataset, k, kept)
        responses = [kept.responses[query] for query in dataset.queries.ids]
        run, told = read_responses(responses, self.options.passages, dataset, self.name)
        measures = resolve_measures(dataset, self.options.measures, depth)
        cut = apply_protocol(run, dataset, depth)
        short, about = find_short_measures(cut, measures, depth, _size(dataset))
        warnings = [*told, *([about] if about else []), *warnings]
        if not self.recipe.options.get("version"):
            warnings.append(NO_VERSION)
        seconds = [response.seconds for response in responses]
        statistics = SearchStatistics(
            Timings(search_s=time.perf_counter() - started),
            preflight={"warnings": warnings} | ({SHORT: short} if short else {}),
            latency=measure_latency(seconds, self.options.concurrency or 1),
        )
        return run, statistics

    def _path(self, dataset: Dataset, k: int) -> Path:
        """Return the file of the responses of this state, which latencies share."""
        concurrency = self.options.concurrency or 1
        made_from = (self.name, self.recipe.fingerprint, dataset.queries_sha256, k, concurrency)
        return dataset.cache_dir / RESPONSES / f"{hash_records([map(str, made_from)])[:32]}.jsonl"

    def _ask_missing(self, dataset: Dataset, depth: int, kept: ResponseFile) -> None:
        """Ask the queries without a response, and deeper if passages leave too few documents."""
        texts = dataset.queries.by_id
        while wanted := self._depths_to_ask(dataset, depth, kept):
            for k in sorted(set(wanted.values())):
                queries = {query: texts[query] for query, each in wanted.items() if each == k}
                self._ask(queries, k, kept.add, f"{dataset.name}: {self.name} answers", kept)

    def _depths_to_ask(self, dataset: Dataset, depth: int, kept: ResponseFile) -> dict[str, int]:
        """Return the number of rows to ask for, by the id of each query that is to be asked."""
        first, wanted = search_depth(dataset, depth), dict[str, int]()
        enough = min(first, _size(dataset))
        for query in dataset.queries.ids:
            response, separator = kept.responses.get(query), self.options.passages
            if response is None:
                wanted[query] = first
            elif separator and len(response.ids) >= response.k < DEEPEST * first:
                found = {parent_id(each, separator) for each in response.ids}
                if len(found) < enough:
                    wanted[query] = 2 * response.k
        return wanted

    def _ask_probe(self, dataset: Dataset, k: int) -> dict[str, Response]:
        """Return the responses to the queries that tell the state, the same ones each time."""
        texts = dataset.queries.by_id
        ids, found = sorted(texts), dict[str, Response]()
        rows = np.linspace(0, len(ids) - 1, min(PROBED, len(ids))).astype(int)
        queries = {ids[row]: texts[ids[row]] for row in rows}
        self._ask(queries, k, lambda response: found.update({response.query: response}))
        return {query: found[query] for query in queries}

    def _ask(
        self,
        queries: Mapping[str, str],
        k: int,
        receive: Callable[[Response], None],
        title: str = "",
        kept: ResponseFile | None = None,
    ) -> None:
        """Ask ``queries``, and say on failure how many responses are ``kept``."""
        caller = Caller(self.system, k, self.options.timeout or TIMEOUT_S, receive)
        try:
            caller.ask(queries, self.options.concurrency or 1, title)
        except BenchError as error:
            again = f"{len(kept.responses):,} responses are kept. " if kept else ""
            again += "Repeat the command to ask the other queries."
            raise BenchError(str(error), f"{error.hint} {again}".strip()) from error

    def _confirm_state(self, dataset: Dataset, k: int, kept: ResponseFile) -> list[str]:
        """Ask the probe again, and raise if the system changed while it was asked.

        A system whose responses differ each time has a warning.
        """
        then = self.recipe.options
        version = self.system.stated("version")
        after = self._digest(self._ask_probe(dataset, k), dataset)
        if (version, after) == (then.get("version", ""), then[STATE]):
            return []
        about = f"its responses to {len(self.probe)} queries differ"
        if version != then.get("version", ""):
            about = f"its version is {version!r}"
        elif self._digest(self._ask_probe(dataset, k), dataset) != after:
            return [f"{about} each time, so scores vary between evaluations"]
        kept.forget_added()
        raise DriftError(
            f"{self.name} changed while it was asked: {about} now",
            "Repeat the command: responses of a mixture are not kept.",
        )

    def _digest(self, probe: Mapping[str, Response], dataset: Dataset) -> str:
        """Return a hash of the rankings of a probe. Scores that rank alike are equal."""
        responses, passages = list(probe.values()), self.options.passages
        run, _ = read_responses(responses, passages, dataset, self.name, UNKNOWN_IN_PROBE)
        ranked = ((query, *ids) for query, ids, _ in run.rankings())
        return hash_records(ranked)[:DIGITS]


def _hash_source(made: Any) -> str:
    """Hash the source code of a function or of an object's class; "" if it is not available."""
    with suppress(OSError, TypeError):  # defined at a prompt, or in C
        source = inspect.getsource(made if inspect.isroutine(made) else type(made))
        return hash_records([[source]])[:DIGITS]
    return ""


def _size(dataset: Dataset) -> int:
    """Return the number of documents, which is without limit if only a system has them."""
    return len(dataset.corpus) if dataset.has_documents else sys.maxsize
