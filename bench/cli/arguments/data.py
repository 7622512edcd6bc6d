"""Options of the commands about what there is and where it lies."""

from typing import Any

from bench.cli.arguments.shared import (
    add_command,
    local_path,
    model_options,
    not_negative,
    place_options,
)


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


def add_cache(commands: Any) -> None:
    """What is stored, and its removal."""
    cache = add_command(
        commands,
        "cache",
        "size of stored vectors by model; check and remove them",
        "examples:\n"
        "  python -m bench cache --verify\n"
        "  python -m bench cache --prune retromae --dry-run\n"
        "  python -m bench cache --older-than 90\n",
    )
    cache.add_argument(
        "--verify", action="store_true", help="read everything, name what is damaged (exit 2)"
    )
    cache.add_argument(
        "--prune",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="remove vectors of these models (names, or first letters of fingerprints)",
    )
    cache.add_argument(
        "--older-than",
        type=not_negative,
        metavar="DAYS",
        help="remove what was not used for so long: of the models named, or of all",
    )
    cache.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    cache.add_argument(
        "--cache-dir",
        type=local_path,
        metavar="DIR",
        help="whose vectors (default: $BENCH_CACHE, then the user's)",
    )
