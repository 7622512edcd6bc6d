"""Options that several commands have."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.results.location import Place, place_of

Options = argparse.ArgumentParser | argparse._ArgumentGroup


def add_command(
    commands: Any,
    name: str,
    help_: str,
    epilog: str,
    function: str = "",
    folders: Sequence[str] = (),
    files: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """A command with the options that all have.

    Args:
        function: that does it, in a module of ``bench.cli.commands`` of the same name; by default
            the command's name.
        folders, files: options that name what the command writes, checked before its work.
    """
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.set_defaults(command=function or name, folders_out=folders, files_out=files)
    added.add_argument("--json", action="store_true", help="one JSON document on stdout")
    added.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return added


def model_options(command: argparse.ArgumentParser, required: bool) -> None:
    """Which models, and how they are used."""
    command.add_argument_group("models").add_argument(
        "--model",
        nargs="+",
        required=required,
        default=[],
        metavar="MODEL",
        help="names of `list models`, card files, folders or Hub ids",
    )
    recipe_options(command)


def recipe_options(command: argparse.ArgumentParser) -> None:
    """How a model is used."""
    group = command.add_argument_group("how a model is used")
    group.add_argument(
        "--like",
        metavar="CARD",
        help="use a plain checkpoint as this card says (pooling, prompts, lengths)",
    )
    group.add_argument("--adapter", metavar="DIR", help="AdapterHub or PEFT adapter to attach")
    group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    group.add_argument(
        "--backend",
        choices=("torch", "onnx", "int8"),
        help="what runs the model (default: torch; onnx and int8 are for the CPU, and int8 is "
        "faster and moves vectors: another recipe)",
    )
    group.add_argument(
        "--store-dtype",
        choices=("float32", "float16"),
        help="of stored vectors (default: float32; float16 halves the disk, and is another recipe)",
    )
    group.add_argument("--max-query-tokens", type=positive, metavar="N")
    group.add_argument("--max-document-tokens", type=positive, metavar="N")
    group.add_argument(
        "--trust-code", action="store_true", help="run the third party's class that a card names"
    )


def scoring_options(command: argparse.ArgumentParser) -> None:
    """What is measured, and where results go."""
    group = command.add_argument_group("scoring")
    group.add_argument(
        "--measure",
        action="append",
        metavar="NAME",
        help="instead of the further measures of the collection; repeatable",
    )
    group.add_argument("--depth", type=positive, metavar="N", help="documents per query")
    group.add_argument("--split", help="instead of the collection's")
    group.add_argument(
        "--out",
        type=results_place,
        default=Path("results"),
        metavar="DIR",
        help="where results go: a folder, or a URL such as s3://bucket/prefix (default: results)",
    )
    mismatch_option(group)


def place_options(command: argparse.ArgumentParser) -> None:
    """Where collections lie, and where things are kept."""
    group = command.add_argument_group("places")
    group.add_argument(
        "--data-dir",
        type=local_path,
        metavar="DIR",
        help="where collections lie (default: $BENCH_DATA, then a download)",
    )
    group.add_argument(
        "--cache-dir",
        type=local_path,
        metavar="DIR",
        help="downloads, corpora, vectors (default: $BENCH_CACHE, then the user's)",
    )
    group.add_argument("--offline", action="store_true", help="download nothing")


def mismatch_option(command: Options) -> None:
    """Continue although the collection differs from the published one."""
    command.add_argument(
        "--allow-mismatch",
        action="store_true",
        help="continue although a collection is not the published one of its name; marked",
    )


def plan_options(command: Options, out: str, kept: str) -> None:
    """A TOML file with a plan of long work, and where what comes of it is kept."""
    command.add_argument("file", metavar="FILE", help="a .toml file, or the name of a shipped one")
    command.add_argument("--variant", default="", metavar="NAME", help="of the file, such as small")
    command.add_argument(
        "--out",
        type=local_path,
        default=Path(out),
        metavar="DIR",
        help=f"where {kept} and reports are kept (default: {out})",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="check everything, show the plan, train nothing"
    )
    mismatch_option(command)


def results_option(command: Options) -> None:
    """Stored results."""
    command.add_argument(
        "--results",
        type=results_place,
        default=Path("results"),
        metavar="DIR",
        help="stored results: a folder, or a URL such as s3://bucket/prefix (default: results)",
    )


def resampling_options(command: Options) -> None:
    """How intervals and p are drawn."""
    command.add_argument(
        "--resamples",
        type=resamples,
        default=9_999,
        metavar="N",
        help="of the queries, for intervals and p (default: 9999)",
    )
    command.add_argument(
        "--seed", type=not_negative, default=0, metavar="N", help="of the resamples (default: 0)"
    )


def training_options(group: Options, example: str) -> None:
    """Fields that every preset of a training has; ``example`` of any other field."""
    group.add_argument("--lr", type=float, metavar="X", help="highest learning rate")
    group.add_argument("--precision", choices=("float32", "bfloat16"))
    group.add_argument(
        "--gradient-checkpointing",
        action="store_true",
        default=None,
        help="less memory for about a third more time",
    )
    group.add_argument("--seed", type=not_negative, metavar="N")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help=f"any other field, such as {example}; repeatable",
    )


def work_options(command: argparse.ArgumentParser) -> None:
    """Where a training runs, and how often it can be gone on from."""
    group = command.add_argument_group("work")
    group.add_argument("--device", choices=("auto", "cpu"), default="auto")
    group.add_argument(
        "--save-every",
        type=positive,
        default=500,
        metavar="N",
        help="steps between checkpoints that a killed training goes on from (default: 500)",
    )


def memory_option(command: argparse.ArgumentParser) -> None:
    """A limit of memory."""
    command.add_argument(
        "--max-memory",
        metavar="SIZE",
        help="most memory of this process, such as 1.5GB (default: 80 %% of what is free)",
    )


def device_option(command: argparse.ArgumentParser) -> None:
    """Where to encode."""
    command.add_argument(
        "--device",
        type=device,
        default="auto",
        help="where to encode: auto, cpu, cuda or cuda:N",
    )


def local_path(text: str) -> Path:
    """A path; an empty one would be the working folder, where ``$DIR`` is not set."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path: name a folder or file")
    return Path(text)


def results_place(text: str) -> Place:
    """A path or the URL of a store; not empty."""
    local_path(text)
    return place_of(text)


def positive(text: str) -> int:
    """A whole number from 1."""
    return _whole(text, 1)


def resamples(text: str) -> int:
    """A whole number up to a million: more take memory and tell nothing."""
    count = positive(text)
    if count > 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is more than 1,000,000")
    return count


def not_negative(text: str) -> int:
    """A whole number from 0."""
    return _whole(text, 0)


def _whole(text: str, lowest: int) -> int:
    """A number of at most 18 digits, which every integer of 64 bits holds."""
    if not text.isdecimal() or len(text) > 18 or int(text) < lowest:
        raise argparse.ArgumentTypeError(f"{text} is not {lowest} or more")
    return int(text)


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 1")
    return found


def device(text: str) -> str:
    """A device by its name."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text} is not auto, cpu, cuda or cuda:N")
    return text
