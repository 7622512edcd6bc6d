"""Options of the commands that evaluate: ``run``, ``score``, ``estimate``."""

from typing import Any

from bench.cli.arguments.shared import (
    add_command,
    device_option,
    local_path,
    memory_option,
    model_options,
    place_options,
    positive,
    scoring_options,
)

RUN_EXAMPLES = """\
examples:
  python -m bench run beir/scifact beir/nfcorpus --model minilm bm25 --data-dir DIR
  python -m bench run beir/scifact --model minilm --index 'IVF64,Flat?nprobe=8'
  python -m bench run path/to/my-collection --model path/to/sentence-transformers-folder
  python -m bench run beir/scifact --model minilm --adapter path/to/lora --name minilm-legal
  python -m bench run msmarco/dev --model retromae-msmarco-ft --measure R@50 --json

Vectors are kept (--cache-dir): a second run encodes nothing, a stopped one goes on.

Of several models or collections, one that cannot be had is a gap with its reason, and the others
are evaluated. Exit codes: 0 nothing is missing, 4 there is a gap, 2 nothing was evaluated.
"""


def add_run(commands: Any) -> None:
    """Evaluate models on collections."""
    run = add_command(
        commands, "run", "evaluate models on collections", RUN_EXAMPLES, folders=("out",)
    )
    run.add_argument("names", nargs="+", metavar="NAME", help="collections, suites or folders")
    run.add_argument(
        "--index",
        default="flat",
        metavar="SPEC",
        help="flat (exact, the default) or a FAISS factory string with parameters",
    )
    device_option(run)
    run.add_argument("--yes", action="store_true", help="do not ask before hours of encoding")
    run.add_argument(
        "--fail-fast",
        action="store_true",
        help="stop at the first evaluation that cannot be had (exit code 2)",
    )
    memory_option(run)
    model_options(run, required=True)
    run.add_argument(
        "--name",
        help="name of the one model in results (default: its own; with --adapter, MODEL+ADAPTER)",
    )
    scoring_options(run)
    place_options(run)


def add_score(commands: Any) -> None:
    """Score anybody's run file."""
    score = add_command(
        commands,
        "score",
        "score a TREC run file",
        "example:\n  python -m bench score my-run.trec --dataset beir/scifact\n",
        folders=("out",),
    )
    score.add_argument("run_file", type=local_path, help="TREC run, six columns, plain or .gz")
    score.add_argument("--dataset", required=True, metavar="NAME", help="collection or folder")
    score.add_argument("--name", help="name of the run in tables (default: the file's)")
    scoring_options(score)
    place_options(score)


def add_estimate(commands: Any) -> None:
    """What a run will cost."""
    estimate = add_command(
        commands,
        "estimate",
        "time, memory and disk of a run, before it starts",
        "examples:\n"
        "  python -m bench estimate beir --model retromae\n"
        "  python -m bench estimate beir/scifact --model minilm bm25 --probe-seconds 5\n",
    )
    estimate.add_argument("names", nargs="+", metavar="NAME", help="collections, suites or folders")
    estimate.add_argument(
        "--probe-seconds",
        type=positive,
        default=20,
        metavar="S",
        help="how long each encoder is tried on this machine (default: 20)",
    )
    estimate.add_argument("--depth", type=positive, metavar="N", help="documents per query")
    estimate.add_argument("--split", help="instead of the collection's")
    device_option(estimate)
    memory_option(estimate)
    model_options(estimate, required=True)
    place_options(estimate)
