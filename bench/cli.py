"""The command line: what is typed, and which room answers.

Heavy libraries are imported by the command that needs them, so that ``--help`` and ``list``
answer at once. Tables go to stdout; progress, warnings and errors to stderr.
"""

import argparse
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import platformdirs

from bench.errors import ExitCode

EXAMPLES = """\
examples:
  python -m bench run stdlib-code --model minilm            the embedded default, no download
  python -m bench run beir --model retromae                 the 14 public sets and their mean
  python -m bench run beir/scifact --model path/to/checkpoint --like retromae
  python -m bench score my-run.trec --dataset beir/scifact  anybody's run file, same scoring
  python -m bench list models
"""

RUN_EXAMPLES = """\
examples:
  python -m bench run beir/scifact beir/nfcorpus --model minilm bm25 --data-dir DIR
  python -m bench run beir/scifact --model minilm --index 'IVF64,Flat?nprobe=8'
  python -m bench run path/to/my-collection --model path/to/sentence-transformers-folder
  python -m bench run msmarco/dev --model retromae-msmarco-ft --measure R@50 --json

Vectors are kept (--cache-dir): a second run encodes nothing, a stopped one goes on.
"""


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; returns its exit code."""
    options = parser().parse_args(arguments)
    _prepare(options)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(
        prog="python -m bench",
        description="Evaluate dense retrievers: from a checkpoint to scores that can be trusted.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_score(commands)
    _add_list(commands)
    _add_estimate(commands)
    _add_fetch(commands)
    _add_verify(commands)
    _add_show(commands)
    return top


def _add_run(commands: Any) -> None:
    run = _command(commands, "run", _work("run"), "evaluate models on collections", RUN_EXAMPLES)
    run.add_argument("names", nargs="+", metavar="NAME", help="collections, suites or folders")
    run.add_argument(
        "--index",
        default="flat",
        metavar="SPEC",
        help="flat (exact, the default) or a FAISS factory string with parameters",
    )
    _device_option(run)
    run.add_argument("--yes", action="store_true", help="do not ask before hours of encoding")
    _memory_option(run)
    _model_options(run, required=True)
    _scoring_options(run)
    _place_options(run)


def _add_score(commands: Any) -> None:
    score = _command(
        commands,
        "score",
        _work("score"),
        "score a TREC run file",
        "example:\n  python -m bench score my-run.trec --dataset beir/scifact\n",
    )
    score.add_argument("run_file", type=Path, help="TREC run, six columns, plain or .gz")
    score.add_argument("--dataset", required=True, metavar="NAME", help="collection or folder")
    score.add_argument("--name", help="name of the run in tables (default: the file's)")
    _scoring_options(score)
    _place_options(score)


def _add_list(commands: Any) -> None:
    listing = _command(
        commands,
        "list",
        _list,
        "models, datasets, suites, measures, indexes",
        "example:\n  python -m bench list models\n",
    )
    listing.add_argument("what", choices=("models", "datasets", "suites", "measures", "indexes"))


def _add_estimate(commands: Any) -> None:
    estimate = _command(
        commands,
        "estimate",
        _work("estimate"),
        "time, memory and disk of a run, before it starts",
        "examples:\n"
        "  python -m bench estimate beir --model retromae\n"
        "  python -m bench estimate beir/scifact --model minilm bm25 --probe-seconds 5\n",
    )
    estimate.add_argument("names", nargs="+", metavar="NAME", help="collections, suites or folders")
    estimate.add_argument(
        "--probe-seconds",
        type=_positive,
        default=20,
        metavar="S",
        help="how long each encoder is tried on this machine (default: 20)",
    )
    estimate.add_argument("--depth", type=_positive, metavar="N", help="documents per query")
    estimate.add_argument("--split", help="instead of the collection's")
    _device_option(estimate)
    _memory_option(estimate)
    _model_options(estimate, required=True)
    _place_options(estimate)


def _add_fetch(commands: Any) -> None:
    fetch = _command(
        commands,
        "fetch",
        _work("fetch"),
        "get all that an offline machine needs",
        "example:\n  python -m bench fetch beir --model retromae\n",
    )
    fetch.add_argument("names", nargs="*", metavar="NAME", help="collections or suites")
    _model_options(fetch, required=False)
    _place_options(fetch)


def _add_verify(commands: Any) -> None:
    verify = _command(
        commands,
        "verify",
        _work("verify"),
        "check the data of collections",
        "example:\n  python -m bench verify beir/scifact\n",
    )
    verify.add_argument("names", nargs="+", metavar="NAME", help="collections, suites or folders")
    verify.add_argument("--split", help="instead of the collection's")
    _place_options(verify)


def _add_show(commands: Any) -> None:
    show = _command(
        commands,
        "show",
        _show,
        "what is known of a model, collection or result",
        "examples:\n  python -m bench show retromae\n  python -m bench show beir/scifact\n",
    )
    show.add_argument("name", help="model, collection, suite, or folder of a result")


def _command(
    commands: Any, name: str, work: Callable[[argparse.Namespace], int], help_: str, epilog: str
) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.set_defaults(command=work)
    added.add_argument("--json", action="store_true", help="one JSON document on stdout")
    added.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return added


def _model_options(command: argparse.ArgumentParser, required: bool) -> None:
    group = command.add_argument_group("models")
    group.add_argument(
        "--model",
        nargs="+",
        required=required,
        default=[],
        metavar="MODEL",
        help="names of `list models`, card files, folders or Hub ids",
    )
    group.add_argument(
        "--like",
        metavar="CARD",
        help="use a plain checkpoint as this card says (pooling, prompts, lengths)",
    )
    group.add_argument("--adapter", metavar="DIR", help="AdapterHub or PEFT adapter to attach")
    group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    group.add_argument(
        "--store-dtype",
        choices=("float32", "float16"),
        help="of stored vectors (default: float32; float16 halves the disk, and is another recipe)",
    )
    group.add_argument("--max-query-tokens", type=_positive, metavar="N")
    group.add_argument("--max-document-tokens", type=_positive, metavar="N")
    group.add_argument(
        "--trust-code", action="store_true", help="run the third party's class that a card names"
    )


def _scoring_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("scoring")
    group.add_argument(
        "--measure",
        action="append",
        metavar="NAME",
        help="instead of the further measures of the collection; repeatable",
    )
    group.add_argument("--depth", type=_positive, metavar="N", help="documents per query")
    group.add_argument("--split", help="instead of the collection's")
    group.add_argument(
        "--out",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where results go (default: results)",
    )
    group.add_argument(
        "--allow-mismatch",
        action="store_true",
        help="go on though counts differ from the published ones; marked",
    )


def _place_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("places")
    group.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where collections lie (default: $BENCH_DATA, then a download)",
    )
    group.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="downloads, corpora, vectors (default: $BENCH_CACHE, then the user's)",
    )
    group.add_argument("--offline", action="store_true", help="download nothing")


def _memory_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--max-memory",
        metavar="SIZE",
        help="most memory of this process, such as 1.5GB (default: three quarters of what is free)",
    )


def _device_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device",
        type=_device,
        default="auto",
        help="where to encode: auto, cpu, cuda or cuda:N",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return int(text)


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text} is not auto, cpu, cuda or cuda:N")
    return text


def _prepare(options: argparse.Namespace) -> None:
    """Settings that libraries read when they are imported."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)  # some libraries set their own loggers to DEBUG
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[handler])
    logging.addLevelName(logging.WARNING, "warning")
    if options.quiet:
        os.environ["TQDM_DISABLE"] = "1"
    elif not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # a log file is not redrawn
    if getattr(options, "offline", False):
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def cache_dir(options: argparse.Namespace) -> Path:
    """Where downloads, corpora and vectors are kept."""
    named = options.cache_dir or os.environ.get("BENCH_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("retrieval-bench")


def _work(name: str) -> Callable[[argparse.Namespace], int]:
    """A command that opens models or collections: its module is imported when it runs."""

    def command(options: argparse.Namespace) -> int:
        module = importlib.import_module(f"bench.commands.{name}")
        work: Callable[[argparse.Namespace, Path], int] = getattr(module, name)
        return work(options, cache_dir(options))

    return command


def _list(options: argparse.Namespace) -> int:
    from bench.catalogue import listing

    rows = listing(options.what)
    if options.json:
        _print_json([{"name": name, "about": about} for name, about in rows])
    else:
        _print_facts(rows)
    return ExitCode.OK


def _show(options: argparse.Namespace) -> int:
    from bench.catalogue import describe

    facts = describe(options.name)
    if options.json:
        _print_json(facts)
    else:
        _print_facts((key, value) for key, value in _flat(facts))
    return ExitCode.OK


def _flat(value: Any, key: str = "") -> Iterable[tuple[str, str]]:
    """A record as lines: nested keys joined with dots, a line an item of a table, no empty ones."""
    if isinstance(value, dict):
        for inner, found in value.items():
            yield from _flat(found, f"{key}.{inner}" if key else str(inner))
    elif isinstance(value, list | tuple):
        items = [_line(item) for item in value]
        yield from zip([key] * len(items), items, strict=True)
    elif value not in (None, ""):
        yield key, str(value)


def _line(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    return ", ".join(str(value) for value in item.values() if value not in ("", (), []))


def _print_facts(rows: Iterable[tuple[str, str]]) -> None:
    from reports.tables import facts_table

    print(facts_table(list(rows)))


def _print_json(document: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())
