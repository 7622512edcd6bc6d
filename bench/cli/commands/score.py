"""``score``: a TREC run file, by the collection's own protocol."""

import sys

import msgspec

from bench.cli.commands.common import workspace
from bench.cli.options.evaluate import ScoreOptions
from bench.cli.printing import print_json
from bench.evaluate.judging import as_retrieved, measure_names, protocol_of, score_run
from bench.evaluate.pipeline import conditions_here
from bench.evaluate.runs import read_run_file
from bench.exit_codes import ExitCode
from bench.results.record import Result, Timings, save
from reports.evaluation import collection_table


def score(options: ScoreOptions) -> int:
    """``score``: a TREC run file, by the collection's own protocol."""
    space = workspace(options.places, allow_mismatch=options.protocol.allow_mismatch)
    opened = space.open_judgements(options.dataset, options.protocol.split)
    dataset = opened.dataset
    names = measure_names(dataset, options.measure, options.protocol.depth)
    depth = options.protocol.depth or dataset.facts.depth
    file = read_run_file(options.run_file)
    run = as_retrieved(file.run, dataset, depth)
    scores, quality = score_run(dataset, run, names, depth)
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
        protocol=protocol_of(dataset, depth, corpus_sha256="", official=opened.official),
        recipe=None,
        fingerprint=file.sha256,
        preflight={},
        timings=Timings(),
        conditions=conditions_here("cpu"),
        **msgspec.structs.asdict(quality),
    )
    stored = save(result, scores, run, options.out)
    print(f"kept in {stored.folder}", file=sys.stderr)
    result = stored.result
    _say_coverage(result)
    if options.output.json:
        print_json({"results": [result], "means": []})
    else:
        print(collection_table([result], {}))
    return ExitCode.OK


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
