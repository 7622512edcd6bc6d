"""Embedded collections: find a function of Python's standard library by its purpose.

They are made from the source of the running interpreter with `ast`. Nothing is imported or
downloaded. A document is a function or method, unparsed from its syntax tree without comments and
docstrings. Its title is empty, since the signature contains the name. A query is the first sentence
of a docstring that is unique among first sentences. The function that it was taken from is its one
relevant document (known-item search).

Functions are left out if their code occurs twice or does nothing. Sentences are left out if they
spell out a call of their function, as in ``"f(x) -> int"``. Tests and demo packages are left out,
too.

Selection is by hash, so it depends only on the source. The collections differ between Python
versions. A version is a content hash, and scores are comparable only under the same one. The
evaluated part is small enough for a small encoder on two CPU cores to take less than two minutes:
about 456,000 WordPiece tokens if documents are cut at 256 (CPython 3.11).

The remaining functions are for training: on CPython 3.11, 7,557 functions and 2,465 queries. The
two parts share no function and no query.
"""

import ast
import hashlib
import inspect
import logging
import os
import platform
import re
import sys
import sysconfig
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from datasets_cfg.readers.beir import read_documents, read_queries
from datasets_cfg.readers.lines import BEIR_HEADER
from foundation.errors import BenchError
from foundation.files import hash_records, replace_folder

DOCUMENTS = 5_000
QUERIES = 2_000
SPLIT = "test"
VERSION_FILE = "version.txt"
GENERATOR_VERSION = 1  # increase it if the same source gives different documents or queries
_SKIPPED = frozenset(
    {"test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "site-packages"}
)
_SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!etc)[.!?](?=\s|$)")
_SHORTEST_QUERY = 4  # words
_WORD = re.compile(r"\w+")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Function:
    """A function of the standard library.

    Attributes:
        id: ``module:qualified.name``.
        code: source without comments and docstrings.
        sentence: first sentence of the docstring; "" if there is none.
    """

    id: str
    code: str
    sentence: str


@dataclass(frozen=True)
class SourceSelection:
    """A collection: ``queries`` are the ``documents`` whose first sentence is a query."""

    documents: tuple[Function, ...]
    queries: tuple[Function, ...]

    @property
    def version(self) -> str:
        """Python version and the first 12 hexadecimal digits of the content hash."""
        documents = hash_records((item.id, item.code) for item in self.documents)
        queries = hash_records((item.id, item.sentence) for item in self.queries)
        return f"py{platform.python_version()}-{hash_records([(documents, queries)])[:12]}"


def generate(cache_dir: Path, split: str = SPLIT) -> Path:
    """Return a folder of ``cache_dir`` with a collection in BEIR's layout, made on first use.

    Damaged files are made again, with a warning.

    Args:
        cache_dir: cache folder.
        split: ``test`` for the evaluated part, ``train`` for the rest, with a separate corpus.

    Raises:
        BenchError: this Python was installed without the source of its standard library.
    """
    sources = list(source_files(Path(sysconfig.get_path("stdlib"))))
    if not sources:
        raise BenchError(
            f"no source of the standard library in {sysconfig.get_path('stdlib')}",
            hint="use a Python that includes it, or another dataset",
        )
    parent = "stdlib-code" if split == SPLIT else f"stdlib-code-{split}"
    folder = cache_dir / parent / _key(sources)
    damaged = folder.is_dir() and not _is_intact(folder, split)
    if damaged:
        logger.warning("%s is damaged: making it again from the standard library", folder)
    if damaged or not folder.is_dir():
        candidates = list(find_functions(sources))
        selected = select_evaluated(candidates)
        if split != SPLIT:
            selected = select_rest(candidates, selected)
        write_collection(selected, folder, split)
    return folder


def version_of(folder: Path) -> str:
    """Return the version of the collection that `generate` wrote to ``folder``."""
    return (folder / VERSION_FILE).read_text(encoding="utf-8").strip()


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield ``(module name, file)`` of the standard library below ``root``, sorted by path.

    Other folders are not entered, since ``site-packages`` may have 20 times as many files.
    """
    for path in sorted(_python_files(root)):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] in sys.stdlib_module_names and not _SKIPPED.intersection(parts):
            yield ".".join(parts).removesuffix(".__init__"), path


def _python_files(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        at_top = folder == str(root)
        inner[:] = [
            name
            for name in inner
            if name not in _SKIPPED and (not at_top or name in sys.stdlib_module_names)
        ]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def find_functions(sources: Iterable[tuple[str, Path]]) -> Iterator[Function]:
    """Yield the functions and methods of modules, the first of several with one name.

    Args:
        sources: module names and files.
    """
    for module, path in sources:
        named: dict[str, FunctionNode] = {}
        for name, node in _definitions(ast.parse(path.read_bytes()), ""):
            named.setdefault(name, node)
        for name, node in named.items():
            sentence = first_sentence(ast.get_docstring(node) or "")
            if _does_something(node):
                yield Function(f"{module}:{name}", code_without_docstrings(node), sentence)


def first_sentence(docstring: str) -> str:
    """Return the first sentence of ``docstring`` on one line, or "" if it is empty."""
    paragraph = " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())
    end = _SENTENCE_END.search(paragraph)
    return paragraph[: end.end()] if end else paragraph


def code_without_docstrings(node: FunctionNode) -> str:
    """Return signature and body of ``node`` without its own and inner docstrings.

    The docstrings are removed from ``node`` itself.
    """
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner.body = _body(inner) or [ast.Pass()]
    return ast.unparse(node)


def select_evaluated(
    candidates: Iterable[Function], documents: int = DOCUMENTS, queries: int = QUERIES
) -> SourceSelection:
    """Choose the evaluated part.

    Args:
        candidates: functions to choose from.
        documents: number of functions.
        queries: number of functions whose sentence is a query.
    """
    unique, askable = _unique_and_askable(candidates)
    chosen = askable[:queries]
    taken = {item.id for item in chosen}
    others = [item for item in unique if item.id not in taken]
    return _sorted_selection([*chosen, *others[: documents - len(chosen)]], chosen)


def select_rest(candidates: Iterable[Function], held_out: SourceSelection) -> SourceSelection:
    """Choose all functions outside the evaluated part, and their queries.

    A sentence that differs from a held-out query only in punctuation or case is left out.

    Args:
        candidates: functions to choose from.
        held_out: the evaluated part.
    """
    unique, askable = _unique_and_askable(candidates)
    taken = {item.id for item in held_out.documents}
    read = {_words(item.sentence) for item in held_out.queries}
    documents = [item for item in unique if item.id not in taken]
    chosen = [
        item for item in askable if item.id not in taken and _words(item.sentence) not in read
    ]
    return _sorted_selection(documents, chosen)


def write_collection(selection: SourceSelection, folder: Path, split: str = SPLIT) -> None:
    """Write a selection in BEIR's layout, atomically.

    Query ids differ from document ids, so that a known item does not look like a self-match.

    Args:
        selection: documents and queries.
        folder: folder to make.
        split: name of the qrels file.
    """
    documents = [{"_id": item.id, "title": "", "text": item.code} for item in selection.documents]
    queries = [{"_id": f"q:{item.id}", "text": item.sentence} for item in selection.queries]
    with replace_folder(folder) as unfinished:
        _write_lines(unfinished / "corpus.jsonl", documents)
        _write_lines(unfinished / "queries.jsonl", queries)
        (unfinished / "qrels").mkdir()
        (unfinished / "qrels" / f"{split}.tsv").write_bytes(_qrels(selection))
        (unfinished / VERSION_FILE).write_text(selection.version + "\n")


def _qrels(selection: SourceSelection) -> bytes:
    rows = [f"q:{item.id}\t{item.id}\t1" for item in selection.queries]
    return "\n".join(["\t".join(BEIR_HEADER), *rows, ""]).encode()


def _is_intact(folder: Path, split: str) -> bool:
    """Return whether the files hash to the version that they state."""
    try:
        documents = read_documents(folder / "corpus.jsonl")
        queries = read_queries(folder / "queries.jsonl")
        pairs = zip(queries.ids, queries.texts, strict=True)
        selection = SourceSelection(
            tuple(Function(id_, text, "") for id_, _, text in documents),
            tuple(Function(id_.removeprefix("q:"), "", text) for id_, text in pairs),
        )
        stated = version_of(folder)
        qrels = (folder / "qrels" / f"{split}.tsv").read_bytes()
    except (BenchError, OSError, UnicodeDecodeError):
        return False
    return (stated, qrels) == (selection.version, _qrels(selection))


def _unique_and_askable(candidates: Iterable[Function]) -> tuple[list[Function], list[Function]]:
    """Return functions with unique code, and those that can be queries, in hash order."""
    known = sorted(candidates, key=lambda item: hashlib.sha256(item.id.encode()).digest())
    codes = Counter(item.code for item in known)
    sentences = Counter(item.sentence.casefold() for item in known)
    unique = [item for item in known if codes[item.code] == 1]
    askable = [
        item for item in unique if sentences[item.sentence.casefold()] == 1 and _is_query(item)
    ]
    return unique, askable


def _sorted_selection(
    documents: Iterable[Function], queries: Iterable[Function]
) -> SourceSelection:
    first, second = (tuple(sorted(some, key=lambda item: item.id)) for some in (documents, queries))
    return SourceSelection(first, second)


def _words(sentence: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", sentence).casefold()))


def _write_lines(path: Path, records: Iterable[dict[str, str]]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, FunctionNode]]:
    """Yield functions of modules and classes by qualified name, without inner functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from _definitions(child, prefix)


def _body(node: FunctionNode | ast.ClassDef) -> list[ast.stmt]:
    """Return the statements of a definition without its docstring."""
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def _does_something(node: FunctionNode) -> bool:
    return not all(
        isinstance(line, ast.Pass | ast.Raise)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in _body(node)
    )


def _is_query(item: Function) -> bool:
    call = f"{item.id.rpartition('.')[2].rpartition(':')[2]}("
    told = call in item.sentence or item.sentence in item.code
    return len(item.sentence.split()) >= _SHORTEST_QUERY and not told


def _key(sources: Sequence[tuple[str, Path]]) -> str:
    """Return the name of the cached collection, which changes if any source file changes."""
    status = ((module, path.stat()) for module, path in sources)
    files = [(module, f"{file.st_size} {file.st_mtime_ns}") for module, file in status]
    made_by = (platform.python_version(), str(GENERATOR_VERSION), str(DOCUMENTS), str(QUERIES))
    return hash_records([made_by, *files])[:16]
