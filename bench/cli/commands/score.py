"""``score``: a TREC run file, by the collection's own protocol."""

import sys

from bench.cli.commands.common import workspace
from bench.cli.options.evaluate import ScoreOptions
from bench.cli.terminal import print_json
from bench.evaluate.pipeline import evaluate_run
from bench.evaluate.runs import read_run_file
from bench.exit_codes import ExitCode
from bench.results.result import Result, save
from reports.evaluation import collection_table


def score(options: ScoreOptions) -> int:
    """``score``: a TREC run file, by the collection's own protocol."""
    space = workspace(options.places, allow_mismatch=options.protocol.allow_mismatch)
    opened = space.open_judgements(options.dataset, options.protocol.split)
    file = read_run_file(options.run_file)
    name = options.name or "_".join(options.run_file.name.split(".trec")[0].split())
    done = evaluate_run(
        *(file.run, name, file.sha256, opened.dataset),
        *(options.measure, options.protocol.depth, opened.official),
    )
    stored = save(done, options.out)
    print(f"kept in {stored.folder}", file=sys.stderr)
    result = stored.result
    _say_coverage(result)
    if options.output.json:
        print_json({"results": [result], "means": [], "gaps": []})
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
