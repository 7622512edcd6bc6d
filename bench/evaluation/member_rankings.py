"""Stored rankings of members of fusions and rerankings, so that each is searched once.

Every pipeline that combines the same model reads its ranking. Exact search is stored to the depth
of the collection, or deeper if a pipeline needs it, and cut to what a pipeline uses: the order of a
ranking is total, so its first k documents are those of a search for k. A search system may answer a
request for fewer documents differently, so it is asked once for each depth. The result of a model
itself is always searched.
"""

from pathlib import Path

import msgspec

from bench.evaluation.judging import apply_protocol
from bench.evaluation.pipeline import LIBRARIES, OpenDataset, program_digest
from bench.evaluation.result_record import Timings
from bench.evaluation.retriever import Retriever, SearchStatistics
from bench.evaluation.run_files import encode_columnar, read_run_file
from bench.evaluation.runs import Run
from bench.store.shards import ignore_read_only
from datasets_cfg.dataset import Dataset
from foundation.files import hash_records, replace_files
from foundation.machine import library_version

RANKINGS = "rankings"  # folder of the cache


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
