"""Small collections on disk, and the command line as a user meets it."""

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from bench.__main__ import main
from tests.support.processes import HANGS_S

ROOT = Path(__file__).resolve().parents[2]
OWN_SETTINGS = ("BENCH_CACHE", "BENCH_DATA")

DOCUMENTS = {
    "d1": ("Wings", "the lift of a wing grows with the angle of attack"),
    "d2": ("", "transition in the boundary layer of a swept wing"),
    "d10": ("Heat", "slabs that conduct heat"),
    "d9": ("Heat", "slabs that conduct heat"),
    "q3": ("", "heat conduction in a slab of metal"),
    "é": ("Flügel", "Auftrieb eines Flügels"),
}
QUERIES = {
    "q1": "lift of a wing",
    "q2": "slabs that conduct heat",
    "q3": "heat conduction",
    "q4": "never judged",
}
QRELS = {
    ("q1", "d1"): 2,
    ("q1", "d2"): 1,
    ("q1", "not-here"): 1,
    ("q2", "d9"): 1,
    ("q2", "d1"): -1,
    ("q3", "d10"): 1,
    ("q3", "q3"): 1,
}

# Of `tests.support.tiny_checkpoints`, whose tokenizers know them.
WORDS = ["alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "the", "of", "and", "a"]

# Sixty documents that are told apart by one word each, and a query for each.
OWN_WORDS = [f"word{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(10)]
SIXTY_DOCUMENTS = {f"d{i:02}": ("", f"{word} common text") for i, word in enumerate(OWN_WORDS)}
SIXTY_QUERIES = {f"q{i:02}": f"{word} text" for i, word in enumerate(OWN_WORDS)}
SIXTY_QRELS = {(f"q{i:02}", f"d{i:02}"): 1 for i in range(len(OWN_WORDS))}
SIXTY = (SIXTY_DOCUMENTS, SIXTY_QUERIES, SIXTY_QRELS)

# Three hundred documents that share words, with white space in their ids, and twenty queries.
NUMBERED = (
    {f"x {n}": ("", f"w{n % 7} w{n % 11} w{n} w{n // 3}") for n in range(300)},
    {f"q{n}": f"w{n % 7} w{n} w{n // 3}" for n in range(20)},
    {(f"q{n}", f"x {n}"): 1 for n in range(20)},
)


def write_collection(
    folder: Path,
    documents: Mapping[str, tuple[str, str]] = DOCUMENTS,
    queries: Mapping[str, str] = QUERIES,
    qrels: Mapping[tuple[str, str], int] = QRELS,
    metadata: str = "",
) -> Path:
    """A folder in BEIR's layout; ``metadata`` is its ``dataset.toml``."""
    (folder / "qrels").mkdir(parents=True)
    rows = [
        {"_id": name, "title": title, "text": text} for name, (title, text) in documents.items()
    ]
    questions = [{"_id": name, "text": text} for name, text in queries.items()]
    for name, records in (("corpus", rows), ("queries", questions)):
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    write_qrels(folder, qrels)
    if metadata:
        (folder / "dataset.toml").write_text(metadata, encoding="utf-8")
    return folder


def with_metadata(folder: Path, values: Sequence[object], **metadata: str) -> Path:
    """A collection whose queries have ``topic`` in their metadata and a column ``source``."""
    write_collection(folder, *SIXTY)
    path = folder / "queries.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row |= {"metadata": {"topic": values[number % len(values)]}, "source": number % 3}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (folder / "dataset.toml").open("a") as file:
        file.writelines(f'{name} = "{value}"\n' for name, value in metadata.items())
    return folder


def write_qrels(folder: Path, qrels: Mapping[tuple[str, str], int], split: str = "test") -> None:
    lines = [f"{query}\t{document}\t{grade}\n" for (query, document), grade in qrels.items()]
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / f"{split}.tsv").write_text(header + "".join(lines), encoding="utf-8")


def write_run(path: Path, rankings: Mapping[str, Mapping[str, float]]) -> Path:
    """A run file of ``{query: {document: score}}``."""
    lines = [
        f"{query} Q0 {document} 0 {score!r} run\n"
        for query, ranking in rankings.items()
        for document, score in ranking.items()
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write_hashing_card(path: Path, dim: int, **fields: object) -> Path:
    """A card of a model without weights; the fewer dimensions, the more words it confuses."""
    known = {"name": path.stem, "title": "Hashing", "kind": "hashing", "normalize": True}
    # Strings, numbers, truth values and lists are written the same in JSON and TOML.
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in {**known, **fields}.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join([*lines, f"options.dim = {dim}\n"]), encoding="utf-8")
    return path


def write_words(folder: Path, count: int = 30) -> Path:
    """A collection of random words; each query has two words of its document."""
    rng = random.Random(folder.name)
    texts = [rng.choices(WORDS, k=4) for _ in range(count)]
    documents = {f"d{place:02}": ("", " ".join(words)) for place, words in enumerate(texts)}
    queries = {f"q{place:02}": " ".join(words[:2]) for place, words in enumerate(texts)}
    qrels = {(f"q{place:02}", f"d{place:02}"): 1 for place in range(count)}
    return write_collection(folder, documents, queries, qrels)


@dataclass(frozen=True)
class Finished:
    """What a command left behind in the terminal."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Bench:
    """The command line with a cache and results of its own, below ``place``."""

    place: Path
    online: bool = False

    @property
    def out(self) -> Path:
        return self.place / "out"

    @property
    def cache(self) -> Path:
        return self.place / "cache"

    def __call__(self, *arguments: object) -> Finished:
        """Run a command in this process: fast, but libraries are imported already."""
        stdout, stderr = io.StringIO(), io.StringIO()
        with mock.patch.dict(os.environ), redirect_stdout(stdout), redirect_stderr(stderr):
            for name in OWN_SETTINGS:
                os.environ.pop(name, None)
            os.environ["HF_HUB_OFFLINE"] = "0" if self.online else "1"
            try:
                code = main(self._words(arguments))
            except SystemExit as stop:  # argparse
                code = int(stop.code or 0)
        return Finished(code, stdout.getvalue(), stderr.getvalue())

    def start(self, *arguments: object, **popen: object) -> subprocess.Popen[str]:
        """Start a command as a process of its own."""
        command = [sys.executable, "-m", "bench", *self._words(arguments)]
        return start(command, **popen)

    def process(self, *arguments: object) -> Finished:
        """Run a command as a process of its own."""
        return finish(self.start(*arguments))

    def results(self, collection: str, model: str) -> Path:
        """Folder of the only result of a model on a collection."""
        (folder,) = (self.out / collection / model).iterdir()
        return folder

    def _words(self, arguments: tuple[object, ...]) -> list[str]:
        words = [str(argument) for argument in arguments]
        if words and words[0] in ("run", "score"):
            words += ["--results", str(self.out)] if "--results" not in words else []
        if words and words[0] in ("run", "work", "score", "fetch", "verify", "cache"):
            words += ["--cache-dir", str(self.cache)] if "--cache-dir" not in words else []
        return words


def start(command: list[str], **popen: object) -> subprocess.Popen[str]:
    left_out = (*OWN_SETTINGS, "TQDM_DISABLE", "TQDM_MININTERVAL")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["HF_HUB_OFFLINE"] = "1"
    options = {"cwd": ROOT, "env": environment, "text": True, "preexec_fn": heed_ctrl_c, **popen}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def heed_ctrl_c() -> None:
    """A shell lets what it runs in the background ignore Ctrl-C, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[str], timeout_s: float = HANGS_S) -> Finished:
    stdout, stderr = process.communicate(timeout=timeout_s)
    return Finished(process.returncode, stdout, stderr)


COMMAND_LINE = "import runpy; runpy.run_module('bench', run_name='__main__')"


def modules_after(program: str, *arguments: object) -> set[str]:
    """Names of the modules that a new process has imported when a line of Python has run."""
    code = (
        "import sys\n"
        f"try: {program}\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = finish(start([sys.executable, "-c", code, *map(str, arguments)]))
    assert done.code == 0, done.stderr
    assert done.stdout or program != COMMAND_LINE
    return set(done.stderr.splitlines()[-1].split())


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def options(command: str, *positional: object, **named: Any) -> tuple[Any, Any]:
    """The request and the output options of a command.

    Args:
        named: options by name: True for a flag, several values as a list, None or False for
            nothing.
    """
    words: list[object] = [command, *positional]
    for name, value in named.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, list | tuple):
            words += [option, *value] if value else []
        elif value is not None and value is not False:
            words += [option, value]
    from bench.cli.main import parse_command  # late, for the sake of all other tests

    parsed = parse_command([str(word) for word in words])
    return parsed.request, parsed.output
