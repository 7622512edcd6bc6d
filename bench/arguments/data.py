"""Options of the commands about what there is and where it lies."""

from typing import Any

from bench.arguments.shared import add_command, model_options, place_options


def add_list(commands: Any) -> None:
    """What there is."""
    listing = add_command(
        commands,
        "list",
        "models, datasets, suites, measures, indexes",
        "example:\n  python -m bench list models\n",
        function="listing",
    )
    listing.add_argument("what", choices=("models", "datasets", "suites", "measures", "indexes"))


def add_show(commands: Any) -> None:
    """What is known of one thing."""
    show = add_command(
        commands,
        "show",
        "what is known of a model, collection or result",
        "examples:\n  python -m bench show retromae\n  python -m bench show beir/scifact\n",
    )
    show.add_argument("name", help="model, collection, suite, or folder of a result")


def add_fetch(commands: Any) -> None:
    """Get what an offline machine needs."""
    fetch = add_command(
        commands,
        "fetch",
        "get all that an offline machine needs",
        "example:\n  python -m bench fetch beir --model retromae\n",
    )
    fetch.add_argument("names", nargs="*", metavar="NAME", help="collections or suites")
    model_options(fetch, required=False)
    place_options(fetch)


def add_verify(commands: Any) -> None:
    """Check data."""
    verify = add_command(
        commands,
        "verify",
        "check the data of collections",
        "example:\n  python -m bench verify beir/scifact\n",
    )
    verify.add_argument("names", nargs="+", metavar="NAME", help="collections, suites or folders")
    verify.add_argument("--split", help="instead of the collection's")
    place_options(verify)
