"""Retrievers that combine the rankings of other models, which are their members.

Rankings of members are stored, so that each is searched once: every pipeline that combines the same
model reads its ranking. Exact search is stored to the depth of the collection, or deeper if a
pipeline needs it, and cut to what a pipeline uses: the order of a ranking is total, so its first k
documents are those of a search for k. A search system may answer a request for fewer documents
differently, so it is asked once for each depth. The result of a model itself is always searched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from bench.evaluation.index_search import check_memory
from bench.evaluation.judging import apply_protocol
from bench.evaluation.pipeline import LIBRARIES, OpenDataset, program_digest
from bench.evaluation.result_record import Timings
from bench.evaluation.retriever import EvaluationOptions, Resources, Retriever, SearchStatistics
from bench.evaluation.run_files import encode_columnar, read_run_file
from bench.evaluation.runs import Run
from bench.store.shards import ignore_read_only
from datasets_cfg.dataset import Dataset
from foundation.files import hash_records, replace_files
from foundation.machine import library_version
from retrievers.models.card import STATE
from retrievers.models.checkpoint import Parameters

RANKINGS = "rankings"  # folder of the cache
ROW_BYTES = 100  # of a document of a member's ranking while rankings are combined


@dataclass(frozen=True, kw_only=True)
class MemberRetriever(Retriever):
    """A retriever of the rankings of others, which identify it with its settings."""

    def _map(self, change: Callable[[Retriever], Retriever]) -> Self:
        return replace(self, members=tuple(map(change, self.members)))

    def identify_members(self) -> Self:
        """Return this model with the fingerprints of its members in its recipe.

        A fingerprint covers the prompts for all datasets. States of systems are put together.
        """
        options = dict(self.recipe.options)
        for number, member in enumerate(self.members, start=1):
            options[f"model_{number}_sha256"] = member.recipe.stateless.fingerprint
        states = [str(member.recipe.options.get(STATE, "")) for member in self.members]
        if any(states):
            options[STATE] = " ".join(states)
        recipe = msgspec.structs.replace(self.recipe, options=options)
        return replace(self, model=replace(self.model, recipe=recipe))

    def configured(self, options: EvaluationOptions, resources: Resources) -> Self:
        """Return this model with other resources. No option of a search applies to its members."""
        depth = self.card.depth
        own = EvaluationOptions(depth=depth, measures=(f"RR@{depth}",))  # any that fits the depth
        configured = super().configured(options, resources)
        return configured._map(lambda each: each.configured(own, resources)).identify_members()

    def for_dataset(self, collection: str) -> Self:
        """Return this model with the prompts of ``collection`` in its members."""
        return super().for_dataset(collection)._map(lambda each: each.for_dataset(collection))

    def with_encoders(self, change: Callable[[Retriever], Retriever]) -> Retriever:
        """Return this model with each retriever of vectors among its members changed."""
        return self._map(lambda member: member.with_encoders(change)).identify_members()

    def parameters(self) -> Parameters | None:
        """Return the sum of the members' parameters, or None if those of one are unknown."""
        return add_parameters([member.parameters() for member in self.members])

    def members_depth(self, depth: int) -> int:
        """Return the number of documents that the members rank for a ranking of ``depth``."""
        return self.card.depth

    def identified(self, dataset: Dataset, depth: int) -> Self:
        """Return this model with the states of the systems among its members."""
        wanted = self.members_depth(depth)
        return self._map(lambda member: member.identified(dataset, wanted)).identify_members()

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of a search in bytes, and raise if it exceeds the limit."""
        wanted = self.members_depth(depth)
        depths = [deepest(member, dataset, wanted) for member in self.members]
        most = max(map(lambda one, k: one.check(dataset, k), self.members, depths))
        documents = len(dataset.corpus) if dataset.has_documents else wanted
        ranked = len(dataset.queries) * sum(min(each, documents) for each in depths)
        needed = most + ranked * ROW_BYTES
        return check_memory(self.name, needed, self.resources.max_memory, documents)

    def search_members(
        self, dataset: Dataset, depth: int
    ) -> tuple[list[Run], list[SearchStatistics]]:
        """Return the rankings of the members without documents that the protocol excludes."""
        wanted = self.members_depth(depth)
        found = [search_member(member, dataset, wanted) for member in self.members]
        return [run for run, _ in found], [statistics for _, statistics in found]

    def sum_statistics(self, found: Sequence[SearchStatistics], own: Timings) -> SearchStatistics:
        """Return how a ranking was computed by the members and then in the time ``own``."""
        warnings = [
            f"{member.name}: {warning}"
            for member, statistics in zip(self.members, found, strict=True)
            for warning in statistics.preflight.get("warnings", ())
        ]
        preflight = {"warnings": warnings} if warnings else {}
        timings = _add([*(statistics.timings for statistics in found), own])
        return SearchStatistics(timings, found[0].device, preflight=preflight)


def add_parameters(counts: Sequence[Parameters | None]) -> Parameters | None:
    """Return the sum of parameters, or None if one of them is unknown."""
    known = [each for each in counts if each is not None]
    if len(known) < len(counts):
        return None
    return Parameters(sum(each.total for each in known), sum(each.adapter for each in known))


def _add(timings: Sequence[Timings]) -> Timings:
    """Return the sum of each time and count."""
    total: dict[str, Any] = {"busy_s": {}}
    for one in timings:
        for name, value in msgspec.structs.asdict(one).items():
            if isinstance(value, dict):
                for kind, seconds in value.items():
                    total[name][kind] = total[name].get(kind, 0.0) + seconds
            else:
                total[name] = total.get(name, 0) + value
    return Timings(**total)


def search_member(member: Retriever, dataset: Dataset, depth: int) -> tuple[Run, SearchStatistics]:
    """Return the ranking of a member by the protocol of ``dataset``, and how it was computed.

    Of a stored ranking, the seconds are those of its search, and nothing was encoded.
    """
    searched_depth = deepest(member, dataset, depth)
    path = _path(member, dataset, searched_depth)
    if path.exists():
        statistics = msgspec.json.decode(
            path.with_suffix(".json").read_bytes(), type=SearchStatistics
        )
        return apply_protocol(read_run_file(path).run, dataset, depth), statistics
    found, statistics = member.search(dataset, searched_depth)
    run = apply_protocol(found, dataset, searched_depth)
    if member.members:  # which are stored themselves
        return run, statistics
    searched = Timings(search_s=statistics.timings.search_s)
    stored = SearchStatistics(
        searched, statistics.device, preflight=statistics.preflight, latency=statistics.latency
    )
    with ignore_read_only(), replace_files([path.with_suffix(".json"), path]) as files:
        files[0].write(msgspec.json.encode(stored))
        files[1].write(encode_columnar(run))
    return apply_protocol(run, dataset, depth), statistics


def deepest(member: Retriever, dataset: Dataset, depth: int) -> int:
    """Return the depth to which a member is searched for its first ``depth`` documents."""
    return max(depth, dataset.metadata.depth) if member.is_cuttable else depth


def _path(member: Retriever, dataset: Dataset, depth: int) -> Path:
    """Return the file of a ranking, whose name has a hash of everything that changes it."""
    protocol = OpenDataset(dataset, official=None).protocol(depth)
    described = (
        (member.recipe.fingerprint, member.index, program_digest()),
        [library_version(name) for name in LIBRARIES],
        msgspec.to_builtins(protocol).values(),
    )
    content = [map(str, each) for each in described]
    return dataset.cache_dir / RANKINGS / f"{hash_records(content)[:32]}.arrow"
