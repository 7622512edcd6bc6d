"""Evaluations as text: scores, means, gaps, costs, and findings about collections."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from textwrap import fill, indent

from bench.evaluation.judging import SuiteMean
from bench.evaluation.result_record import Result
from bench.requests.outcomes import MissingEvaluation
from bench.runner.run import EncodingCost
from bench.store.store import ModelUsage
from datasets_cfg.verification import Finding
from foundation.errors import format_count, format_names
from foundation.machine import format_size
from reports import format as fmt
from reports.table import Column, Table, columns_for, escape, make_table

SHOWN = 8  # letters of a fingerprint: enough to distinguish models, and to prune by
TOTAL = "total"
WIDTH = 80  # columns of a terminal

Published = Mapping[tuple[str, str, str], float]  # (model, collection, measure) -> score


def collection_table(results: Sequence[Result], published: Published) -> str:
    """Return a table of all models on one collection, with the main measure first."""
    main = results[0].main_measure
    others = dict.fromkeys(name for result in results for name in result.measures if name != main)
    columns: list[Column[Result]] = [
        Column("model", lambda result: result.model + (" (in-domain)" * result.in_domain)),
        *columns_for((main, *others), lambda result, name: result.measures.get(name), fmt.score),
        Column("ties", _tie_range, fmt.numeric),
        Column("judged@10", lambda result: result.judged_at_10, fmt.score),
        Column("published", lambda result: _claim(result, published), fmt.score),
        Column("index", lambda result: result.index if result.index != "flat" else ""),
        Column("searched on", _search_device),
        Column("compression", lambda result: result.recipe and result.recipe.compression.label),
        Column("bytes per document", lambda result: result.bytes_per_document, fmt.count),
        Column("index recall", _recalls, fmt.numeric),
        Column("unanswered", lambda result: result.unanswered or None, fmt.count),
        Column("fewer documents", _short_measures),
        Column("latency", lambda result: result.latency and fmt.latency(result.latency)),
    ]
    table = Table(results, columns).drop_empty()
    return f"{escape(_heading(results[0]))}\n\n{table.markdown()}"


def _heading(result: Result) -> str:
    protocol = result.protocol
    parts = [format_count(result.queries, "query", "queries")]
    if result.documents is not None:
        parts.append(f"{result.documents:,} documents")
    parts += [protocol.version, f"{protocol.split} split", f"depth {protocol.depth}"]
    if protocol.title_track:
        parts.append(f"{protocol.title_track} track")
    if protocol.exclude_self:
        parts.append("document with the query's id excluded")
    if protocol.is_altered:
        parts.append("NOT the published collection")
    return f"{protocol.collection}: {', '.join(part for part in parts if part)}"


def _claim(result: Result, published: Published) -> float | None:
    """Return the published score of the main measure, if the data are the published ones."""
    known = {} if result.protocol.is_altered else published
    return known.get((result.model, result.protocol.collection, result.main_measure))


def _tie_range(result: Result) -> str:
    """Return the range of scores over orders of tied documents, if four digits show it."""
    if result.tie_low is None or result.tie_high is None:
        return ""
    low, high = fmt.score(result.tie_low), fmt.score(result.tie_high)
    return "" if low == high else f"{low}–{high}"


def _short_measures(result: Result) -> str:
    """Return the fewest documents of a query, by measure that counts more."""
    return ", ".join(f"{name}: {fewest:,}" for name, fewest in result.short_measures.items())


def _recalls(result: Result) -> str:
    """Return index recall by depth, with the number of queries if it is a sample."""
    recalls, some = result.index_recall, result.recall_queries
    shares = ", ".join(f"{name.removeprefix('recall@')}: {v:.3f}" for name, v in recalls.items())
    if not shares or some is None:
        return shares
    return f"{shares} ({format_count(some, 'query', 'queries')})"


def _search_device(result: Result) -> str:
    """Return the device on which an index was searched."""
    return "" if result.index in ("", "flat", "bm25") else result.conditions.search_device


def means_table(means: Sequence[SuiteMean], published: Published) -> str:
    """Return a table of suites' means by model; an incomplete one is a gap that names members."""
    columns: list[Column[SuiteMean]] = [
        Column("suite", lambda mean: mean.suite, fmt.display_name),
        Column("mean of", _mean_of),
        Column("model", lambda mean: mean.model),
        Column("mean", lambda mean: mean.value, fmt.score),
        Column("zero-shot mean", lambda mean: mean, _zero_shot),
        Column(
            "published",
            lambda mean: published.get((mean.model, mean.suite, mean.measure)),
            fmt.score,
        ),
        Column("missing", _gap, fmt.short_text),
    ]
    return Table(means, columns).markdown()


def _mean_of(mean: SuiteMean) -> str:
    return f"{mean.measure}, {mean.members} sets" + ", weighted" * mean.weighted


def _zero_shot(mean: SuiteMean) -> str:
    if mean.zero_shot is None:
        return ""
    return f"{fmt.score(mean.zero_shot)} ({mean.zero_shot_members} sets)"


def _gap(mean: SuiteMean) -> str:
    """Return members without a score of the published collection, the first few by name."""
    if not mean.missing:
        return ""
    return f"{len(mean.missing)} of {mean.members}: {format_names(mean.missing)}"


FROM_ADDRESS = re.compile(r"^\S+ from \S+: ")  # the file of one collection


def gaps_list(gaps: Sequence[MissingEvaluation]) -> str:
    """Return the missing evaluations ``gaps`` by cause: a table, then a list of the causes."""
    models: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for gap in gaps:
        # The same cause for other collections. A name may be part of a longer word or option.
        name = re.compile(rf"(?<![\w-]){re.escape(gap.collection)}(?![\w-])")
        texts = FROM_ADDRESS.sub("", gap.reason), gap.hint
        cause = tuple(name.sub("NAME", text) for text in texts)
        models.setdefault(cause, {}).setdefault(gap.collection, []).append(gap.model or "all")
    rows = [
        (name, ", ".join(failed), number)
        for number, collections in enumerate(models.values(), start=1)
        for name, failed in collections.items()
    ]
    causes = []
    for number, (cause, collections) in enumerate(models.items(), start=1):
        meant = next(iter(collections)) if len(collections) == 1 else "NAME"
        reason, hint = (text.replace("NAME", meant) for text in cause)
        line = f"{number}. {escape(reason)}. {hint}".rstrip()
        causes.append(fill(line, WIDTH, subsequent_indent="   ", break_long_words=False))
    table = make_table(["not evaluated", "model", "cause"], rows).markdown()
    return "\n\n".join([table, "\n".join(causes)])


def costs_table(rows: Sequence[EncodingCost]) -> str:
    """Return a table of estimated costs in ``rows``, and their total."""
    added = ("documents", "to_encode", "tokens", "encode_s", "disk_bytes")
    total = EncodingCost(
        model="",
        collection=TOTAL,
        memory_bytes=max((row.memory_bytes for row in rows), default=0),
        **{name: sum(getattr(row, name) for row in rows) for name in added},
    )
    columns: list[Column[EncodingCost]] = [
        Column("collection", lambda row: row.collection),
        Column("model", lambda row: row.model),
        Column("documents", lambda row: row.documents, fmt.count),
        Column("to encode", lambda row: row.to_encode, fmt.count),
        Column("tokens", lambda row: row.tokens, fmt.count),
        Column("encode", lambda row: row.encode_s, fmt.duration),
        Column("memory", lambda row: row.memory_bytes, format_size),
        Column("disk", lambda row: row.disk_bytes, format_size),
    ]
    return Table([*rows, total], columns).markdown()


def cache_table(rows: Sequence[ModelUsage]) -> str:
    """Return a table of the size of each model's vectors, and their total."""
    total = ModelUsage(
        model=TOTAL, fingerprint="", dtype="", bytes=sum(row.bytes for row in rows), last_used=0.0
    )
    columns: list[Column[ModelUsage]] = [
        Column("model", lambda row: row.model),
        Column("fingerprint", lambda row: row.fingerprint[:SHOWN]),
        Column("size", lambda row: row.bytes, format_size),
        Column("dtype", lambda row: row.dtype),
        Column("last used", lambda row: "" if row is total else _date(row.last_used)),
    ]
    return Table([*rows, total], columns).markdown()


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def findings(name: str, of_collection: Sequence[Finding]) -> str:
    """Return the findings ``of_collection`` of the checks of the collection ``name``."""
    if not of_collection:
        return f"{name}: no findings"
    lines = "\n".join(f"{finding.severity}: {finding.text()}" for finding in of_collection)
    return f"{name}:\n{indent(lines, '  ')}"
