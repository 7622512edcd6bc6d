"""The commands that do work: open what was named, evaluate, keep the records, show them."""

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from bench.errors import BenchError, ExitCode
from bench.estimate import confirm, seconds_per_document
from bench.judging import as_retrieved, measure_names, protocol_of, score_run
from bench.pipeline import Options, conditions_here, evaluate
from bench.results import Result, Timings, place, save
from bench.runs import check_writable, read_run
from bench.store import VectorStore
from bench.suites import SuiteMean, suite_mean, with_inner
from datasets_cfg.catalogue import expand, suite_for
from datasets_cfg.dataset import (
    Dataset,
    count_mismatches,
    judgement_mismatches,
    open_dataset,
)
from datasets_cfg.verify import Finding
from datasets_cfg.verify import verify as verify_dataset
from reports.tables import collection_table, findings_table, means_table
from retrievers.encoder import Encoder
from retrievers.index import FaissIndex, IndexSpec
from retrievers.model import Model, open_encoder, resolve_model

WORTH_AN_ESTIMATE = 20_000  # documents to encode


@dataclass(frozen=True)
class _Contender:
    """A model with its encoder; BM25 has none."""

    model: Model
    encoder: Encoder | None

    def on(self, collection: str) -> "_Contender":
        """With the prompts of one collection, and the same loaded weights."""
        encoder = self.encoder.for_dataset(collection) if self.encoder else None
        return _Contender(self.model.for_dataset(collection), encoder)


def run(options: argparse.Namespace, cache_dir: Path) -> int:
    """``run``: evaluate every model on every collection; a table each, then the suites' means."""
    spec = IndexSpec.parse(options.index)
    names = expand(options.names)
    _check_out(options.out)
    contenders = [_contender(name, options) for name in options.model]
    _check_names(contenders)
    _check_index(spec, contenders)
    datasets = [_open(name, options, cache_dir) for name in names]
    for dataset in datasets:
        _check_storable(dataset, contenders, options)
    official = {
        dataset.name: _is_official(dataset, count_mismatches(dataset), options.allow_mismatch)
        for dataset in datasets
    }
    store = VectorStore(cache_dir / "vectors")
    _say_how_long(contenders, datasets, store, options.yes)
    choices = Options(spec, options.depth, _wanted(options), options.device)
    results: list[Result] = []
    for dataset in datasets:
        of_dataset = []
        for contender in contenders:
            one = contender.on(dataset.name)
            done = evaluate(dataset, one.model, one.encoder, store, choices, official[dataset.name])
            folder = save(done.result, done.scores, done.run, options.out)
            _say_done(done.result, folder)
            of_dataset.append(done.result)
        if not options.json:
            print(collection_table(of_dataset, _published(contenders)), end="\n\n", flush=True)
        results += of_dataset
    means = _means(options.names, results)
    if options.json:
        rows = [{"model": model, **msgspec.structs.asdict(mean)} for model, mean in means]
        _print_json({"results": results, "means": rows})
    elif means:
        print(means_table(means, _published(contenders)))
    return ExitCode.OK


def score(options: argparse.Namespace, cache_dir: Path) -> int:
    """``score``: a TREC run file, by the collection's own protocol."""
    dataset = _open(options.dataset, options, cache_dir)
    names = measure_names(dataset, options.measure)
    official = _is_official(dataset, judgement_mismatches(dataset), options.allow_mismatch)
    depth = options.depth or dataset.facts.depth
    found = as_retrieved(read_run(options.run_file), dataset, depth)
    scores, standing = score_run(dataset, found, names, depth)
    content = options.run_file.read_bytes()
    result = Result(
        model=options.name or "_".join(options.run_file.name.split(".trec")[0].split()),
        main_measure=names[0],
        measures={name: scores.mean(name) for name in names},
        queries=len(scores.query_ids),
        documents=None,
        unanswered=scores.unanswered,
        ignored=scores.ignored,
        index="",
        index_recall={},
        in_domain=False,
        protocol=protocol_of(dataset, depth, corpus_sha256="", official=official),
        recipe=None,
        fingerprint=hashlib.sha256(content).hexdigest(),
        preflight={},
        timings=Timings(),
        conditions=conditions_here("cpu"),
        **msgspec.structs.asdict(standing),
    )
    folder = save(result, scores, found, options.out)
    print(f"kept in {folder}", file=sys.stderr)
    _say_coverage(result)
    if options.json:
        _print_json({"results": [result], "means": []})
    else:
        print(collection_table([result], {}))
    return ExitCode.OK


def fetch(options: argparse.Namespace, cache_dir: Path) -> int:
    """``fetch``: download collections and models, and build the corpora."""
    if not options.names and not options.model:
        raise BenchError(
            "nothing to fetch was named", "python -m bench fetch beir --model retromae"
        )
    rows = []
    for name in expand(options.names):
        dataset = _open(name, options, cache_dir)
        about = f"{len(dataset.corpus):,} documents, {len(dataset.queries):,} queries"
        rows.append({"name": name, "about": about})
    for name in options.model:
        model = _contender(name, options).model
        where = str(model.document.root) if model.document else "needs no files"
        rows.append({"name": model.card.name, "about": where})
    _print_rows(rows, options.json)
    return ExitCode.OK


def verify(options: argparse.Namespace, cache_dir: Path) -> int:
    """``verify``: what is peculiar in the data. Errors give the exit code of bad input."""
    found: dict[str, list[Finding]] = {}
    for name in expand(options.names):
        found[name] = verify_dataset(_open(name, options, cache_dir))
        if not options.json:
            print(findings_table(name, found[name]), end="\n\n", flush=True)
    if options.json:
        _print_json(found)
    bad = any(finding.severity == "error" for findings in found.values() for finding in findings)
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def _contender(name: str, options: argparse.Namespace) -> _Contender:
    model = resolve_model(
        name,
        like=options.like,
        adapter=options.adapter,
        dtype=options.dtype,
        max_query_tokens=options.max_query_tokens,
        max_document_tokens=options.max_document_tokens,
        trust_code=options.trust_code,
    )
    if model.recipe.kind == "bm25":
        return _Contender(model, None)
    return _Contender(model, open_encoder(model, getattr(options, "device", "auto")))


def _check_storable(
    dataset: Dataset, contenders: Sequence[_Contender], options: argparse.Namespace
) -> None:
    """What would fail when the result is written fails now, before hours of encoding."""
    measure_names(dataset, options.measure)
    for contender in contenders:
        place(options.out, dataset.name, contender.model.card.name)
    check_writable(pa.array(dataset.queries.ids, pa.large_string()), "query id")
    check_writable(dataset.corpus.ids, "document id")


def _check_out(out: Path) -> None:
    """A file cannot hold results: say so before hours of encoding."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise BenchError(f"{nearest} is a file, and results go into a folder", "change --out")


def _check_names(contenders: Sequence[_Contender]) -> None:
    """Tables and means tell models apart by their names."""
    for name, count in Counter(one.model.card.name for one in contenders).items():
        if count > 1:
            raise BenchError(
                f"{count} of the models are called {name}",
                "run one after the other, or rename the folder or card of one",
            )


def _check_index(spec: IndexSpec, contenders: Sequence[_Contender]) -> None:
    """FAISS reads the factory string when an index is made: do that before hours of encoding."""
    for encoder in (one.encoder for one in contenders if one.encoder and not spec.is_exact):
        FaissIndex(spec, encoder.dim)


def _open(name: str, options: argparse.Namespace, cache_dir: Path) -> Dataset:
    return open_dataset(
        name,
        cache_dir=cache_dir,
        data_dir=options.data_dir,
        split=getattr(options, "split", None),
        download=not options.offline,
    )


def _wanted(options: argparse.Namespace) -> tuple[str, ...] | None:
    return None if options.measure is None else tuple(options.measure)


def _is_official(dataset: Dataset, different: Sequence[str], allowed: bool) -> bool:
    """Whether the counts are the published ones; if not, that must have been allowed."""
    if different and not allowed:
        raise BenchError(
            f"this is not the published {dataset.name}: {'; '.join(different)}",
            "`verify` says more; --allow-mismatch goes on all the same, and marks the result",
        )
    return not different


def _say_how_long(
    contenders: Sequence[_Contender], datasets: Sequence[Dataset], store: VectorStore, yes: bool
) -> None:
    """Estimate long work before it starts."""
    total_s, documents = 0.0, 0
    for contender in contenders:
        for dataset in datasets:
            encoder = contender.on(dataset.name).encoder
            if encoder is None or len(dataset.corpus) < WORTH_AN_ESTIMATE:
                continue
            missing = store.plan(encoder, dataset.corpus).missing_rows
            if missing:
                total_s += missing * seconds_per_document(encoder, dataset.corpus)
                documents += missing
    if documents:
        confirm(total_s, f"{documents:,} documents", yes)


def _published(contenders: Iterable[_Contender]) -> dict[tuple[str, str, str], float]:
    return {
        (one.model.card.name, expected.dataset, expected.measure): expected.value
        for one in contenders
        for expected in one.model.card.expected
    }


def _means(typed: Sequence[str], results: Sequence[Result]) -> list[tuple[str, SuiteMean]]:
    """Means of the suites that were asked for and of those inside them, by model and measure."""
    means = []
    for suite in (name for name in with_inner(typed) if suite_for(name).mean):
        for model in dict.fromkeys(result.model for result in results):
            own = [result for result in results if result.model == model]
            seen = {result.protocol.collection for result in own if result.in_domain}
            for measure in dict.fromkeys(name for result in own for name in result.measures):
                values = {
                    result.protocol.collection: result.measures[measure]
                    for result in own
                    if measure in result.measures and result.protocol.official
                }
                means.append((model, suite_mean(suite, measure, values, seen)))
    return means


def _say_done(result: Result, folder: Path) -> None:
    spent = result.timings
    for warning in result.preflight.get("warnings", ()):
        print(f"warning: {result.model}: {warning}", file=sys.stderr)
    print(
        f"{result.protocol.collection}, {result.model}: "
        f"{spent.encoded_documents:,} documents encoded in {spent.encode_documents_s:.1f} s, "
        f"searched in {spent.search_s:.1f} s; kept in {folder}",
        file=sys.stderr,
    )


def _say_coverage(result: Result) -> None:
    if result.unanswered:
        print(
            f"warning: {result.unanswered:,} of {result.queries:,} queries have no document in "
            "the run; they score 0",
            file=sys.stderr,
        )
    if result.ignored:
        print(
            f"note: {result.ignored:,} queries of the run have no judgement; they count nowhere",
            file=sys.stderr,
        )


def _print_rows(rows: Sequence[dict[str, str]], as_json: bool) -> None:
    from reports.tables import facts_table

    if as_json:
        _print_json(rows)
    else:
        print(facts_table([(row["name"], row["about"]) for row in rows]))


def _print_json(document: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())
