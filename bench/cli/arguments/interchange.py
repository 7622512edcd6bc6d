"""Options of the commands that trade results: ``export``, ``import``, ``merge``."""

from pathlib import Path
from typing import Any

from bench.cli.arguments.shared import add_command, local_path, results_option, results_place

EXPORT_EXAMPLES = """\
examples:
  python -m bench export mteb minilm --as sentence-transformers/all-MiniLM-L6-v2 --out mteb
  python -m bench export model-index minilm --on beir --out cards
  python -m bench export trec minilm bm25 --out runs

mteb         MODEL/REVISION/SciFact.json, as mteb 2 reads it
model-index  MODEL/README.md, the YAML block of a model card on the Hugging Face Hub
trec         MODEL/COLLECTION.trec.gz, the rankings
"""

IMPORT_EXAMPLES = """\
examples:
  python -m bench import mteb/results --out results
  python -m bench import README.md --model my-model --source 'its model card'

A result of mteb, a folder of them, or a model card (README.md, .yaml). What is imported is a claim:
it has no values of queries and is never compared or tested. The leaderboard shows it beside what
was measured of the same model, and with --published as a row of its own, marked.
A TREC run file is scored instead: python -m bench score RUN --dataset NAME
"""

MERGE_EXAMPLES = """\
examples:
  python -m bench merge machine-1/results machine-2/results --out results
  python -m bench merge results s3://bucket/results --out s3://bucket/results

Nothing is written over. Evaluations with the same scores are kept once. One with other scores is a
conflict: both are kept side by side, they are named, and the exit code is 5.
"""


def add_export(commands: Any) -> None:
    """Stored results in a format of others."""
    export = add_command(
        commands,
        "export",
        "stored results as mteb, the Hub or trec_eval read",
        EXPORT_EXAMPLES,
        folders=("out",),
    )
    export.add_argument("format", choices=("mteb", "model-index", "trec"))
    export.add_argument(
        "names", nargs="+", metavar="MODEL", help="models with stored results, as for compare"
    )
    export.add_argument(
        "--on", nargs="+", default=[], metavar="NAME", help="only these collections or suites"
    )
    export.add_argument(
        "--as", dest="name", metavar="NAME", help="name of the one model in the files"
    )
    export.add_argument(
        "--out", type=results_place, required=True, metavar="DIR", help="folder or URL of the files"
    )
    results_option(export)


def add_import(commands: Any) -> None:
    """Scores of others as claims."""
    command = add_command(
        commands,
        "import",
        "published scores, as claims beside results",
        IMPORT_EXAMPLES,
        "import_",
        folders=("out",),
    )
    command.add_argument(
        "files",
        nargs="+",
        type=local_path,
        metavar="FILE",
        help="of mteb, or a model card; or a folder",
    )
    command.add_argument("--model", metavar="NAME", help="the model (default: as the files say)")
    command.add_argument("--source", default="", metavar="TEXT", help="who stated the scores")
    command.add_argument(
        "--out",
        type=results_place,
        default=Path("results"),
        metavar="DIR",
        help="results that the claims go beside: a folder or URL (default: results)",
    )


def add_merge(commands: Any) -> None:
    """Folders of results as one."""
    merge = add_command(
        commands, "merge", "folders of results as one folder", MERGE_EXAMPLES, folders=("out",)
    )
    merge.add_argument(
        "places", nargs="+", type=results_place, metavar="DIR", help="results: folders or URLs"
    )
    merge.add_argument(
        "--out",
        type=results_place,
        required=True,
        metavar="DIR",
        help="folder or URL; what it holds stays",
    )
