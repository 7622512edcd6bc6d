"""``run``: every model on every collection; a table each, then the means of the suites."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from bench.cli.commands.common import (
    Contender,
    is_official,
    open_contender,
    open_named,
    print_json,
)
from bench.evaluate.estimate import confirm, mean_tokens, measure_speed
from bench.evaluate.judging import measure_names
from bench.evaluate.memory import parse_size
from bench.evaluate.pipeline import Options, check_memory, evaluate
from bench.evaluate.runs import check_writable
from bench.evaluate.suites import SuiteMean, suite_mean, with_inner
from bench.exit_codes import ExitCode
from bench.results.location import Place
from bench.results.record import Result, place, save
from bench.store import VectorStore
from datasets_cfg.catalogue import expand, suite_for
from datasets_cfg.dataset import Dataset, count_mismatches
from foundation.errors import BenchError
from reports.tables import collection_table, means_table, time_line
from retrievers.adapters.bases import Bases
from retrievers.index.faiss_index import FaissIndex, IndexSpec

WORTH_AN_ESTIMATE = 20_000  # documents to encode
PROBE_S = 5.0  # of the encoder, before work that is worth an estimate


def run(options: argparse.Namespace, cache_dir: Path) -> int:
    """``run``: evaluate every model on every collection; a table each, then the suites' means."""
    choices = _choices(options)
    names = expand(options.names, options.data_dir)
    bases = Bases()
    contenders = [open_contender(name, options, bases) for name in options.model]
    _check_names(contenders)
    _check_index(choices.index, contenders)
    datasets = [open_named(name, options, cache_dir) for name in names]
    for dataset in datasets:
        _check_storable(dataset, contenders, options)
        for encoder in (one.encoder for one in contenders if one.encoder):
            check_memory(dataset, encoder.dim, choices)
    official = {
        dataset.name: is_official(dataset, count_mismatches(dataset), options.allow_mismatch)
        for dataset in datasets
    }
    store = VectorStore(cache_dir / "vectors")
    _say_how_long(contenders, datasets, store, options.yes)
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
        print_json({"results": results, "means": rows})
    elif means:
        print(means_table(means, _published(contenders)))
    return ExitCode.OK


def _check_storable(
    dataset: Dataset, contenders: Sequence[Contender], options: argparse.Namespace
) -> None:
    """What would fail when the result is written fails now, before hours of encoding."""
    measure_names(dataset, options.measure, options.depth)
    for contender in contenders:
        place(options.out, dataset.name, contender.model.card.name)
    check_writable(pa.array(dataset.queries.ids, pa.large_string()), "query id")
    check_writable(dataset.corpus.ids, "document id")


def _check_names(contenders: Sequence[Contender]) -> None:
    """Tables and means tell models apart by their names."""
    for name, count in Counter(one.model.card.name for one in contenders).items():
        if count > 1:
            raise BenchError(
                f"{count} of the models are called {name}",
                "run one after the other, or rename the folder or card of one",
            )


def _check_index(spec: IndexSpec, contenders: Sequence[Contender]) -> None:
    """FAISS reads the factory string when an index is made: do that before hours of encoding."""
    for encoder in (one.encoder for one in contenders if one.encoder and not spec.is_exact):
        FaissIndex(spec, encoder.dim)


def _choices(options: argparse.Namespace) -> Options:
    return Options(
        index=IndexSpec.parse(options.index),
        depth=options.depth,
        measures=None if options.measure is None else tuple(options.measure),
        device=options.device,
        max_memory=None if options.max_memory is None else parse_size(options.max_memory),
    )


def _say_how_long(
    contenders: Sequence[Contender], datasets: Sequence[Dataset], store: VectorStore, yes: bool
) -> None:
    """Estimate long work before it starts."""
    total_s, documents = 0.0, 0
    for contender in contenders:
        speed = None
        for dataset in datasets:
            encoder = contender.on(dataset.name).encoder
            if encoder is None or len(dataset.corpus) < WORTH_AN_ESTIMATE:
                continue
            missing = store.plan(encoder, dataset.corpus).missing_rows
            if missing:
                speed = speed or measure_speed(encoder, dataset.corpus, PROBE_S)
                total_s += missing * mean_tokens(encoder, dataset.corpus) / speed.tokens_per_s
                documents += missing
    if documents:
        confirm(total_s, f"{documents:,} documents", yes)


def _published(contenders: Iterable[Contender]) -> dict[tuple[str, str, str], float]:
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


def _say_done(result: Result, folder: Place) -> None:
    spent = result.timings
    for warning in result.preflight.get("warnings", ()):
        print(f"warning: {result.model}: {warning}", file=sys.stderr)
    encode_s = spent.encode_queries_s + spent.encode_documents_s
    rate = f", {spent.encoded_tokens / encode_s:,.0f} tokens/s" if spent.encoded_tokens else ""
    print(
        f"{result.protocol.collection}, {result.model}: "
        f"{spent.encoded_documents:,} documents encoded in {spent.encode_documents_s:.1f} s{rate}; "
        f"searched in {spent.search_s:.1f} s; kept in {folder}",
        file=sys.stderr,
    )
    if busy := time_line(spent):
        print(f"  where the time went, added up over threads: {busy}", file=sys.stderr)
