"""A leaderboard as a folder of static pages that open from disk.

Pages fetch nothing: their data lie beside them as scripts. Names come from results, which may be
anybody's, so they are only ever set as text, and nothing in a script file can end its element.
"""

import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from bench.leaderboard.records import Board
from foundation.printable import one_line
from reports.leaderboard_data import (
    Pages,
    Plot,
    board_data,
    model_data,
    named_queries,
    pair_data,
    query_data,
)

SITE = files("reports") / "site"
KINDS = ("index", "model", "collection", "pair")
SHARED = ("page", "table")  # scripts of every page
MORE = {"pair": ("queries",)}
ASSETS = (
    "style.css",
    "theme.js",
    *(f"{name}.js" for names in (SHARED, *MORE.values(), KINDS) for name in names),
)
DATA = "data.js"
FOLDERS = ("models", "collections", "pairs", "queries")


def write_site(board: Board, out: Path, measure: str = "", plots: Sequence[Plot] = ()) -> Path:
    """Write all pages; returns the first one.

    Pages of models and collections of an earlier leaderboard in the same folder are removed.

    Args:
        measure: that is chosen when a page opens; "" for the main ones.
        plots: to be shown below the table.
    """
    _make_room(out)
    pages = write_data(board, out, measure, plots)
    for name in ASSETS:  # after the data, by which a site is known that was not finished
        (out / name).write_text((SITE / name).read_text(encoding="utf-8"), encoding="utf-8")
    first = len(board.suites)
    for number, (row, page) in enumerate(zip(board.rows, pages.models, strict=True)):
        _script(out / f"{page}.js", "DETAILS", model_data(board, row))
        _page(out / f"{page}.html", row.name, "model", number, [f"../{page}.js"])
    for number, (column, page) in enumerate(
        zip(board.columns, pages.collections, strict=True), first
    ):
        _page(out / f"{page}.html", column.name, "collection", number)
    _write_pairs(board, pages, out)
    return _page(out / "index.html", "Leaderboard", "index", 0)


def write_data(board: Board, out: Path, measure: str = "", plots: Sequence[Plot] = ()) -> Pages:
    """Write what all pages share, again where pictures were drawn later; returns their paths."""
    collections = [column.name for column in board.columns]
    pages = Pages(
        models=slugs("models", [row.name for row in board.rows]),
        collections=slugs("collections", collections),
        pairs=slugs("pairs", [f"{pair.a} - {pair.b}" for pair in board.pairs]),
        queries=slugs("queries", collections),
    )
    _script(out / DATA, "LEADERBOARD", board_data(board, measure, pages, plots))
    return pages


def _write_pairs(board: Board, pages: Pages, out: Path) -> None:
    """A page for each pair; the queries that any of them names are one script a collection."""
    named = named_queries(board)
    for number, (place, page) in enumerate(zip(board.columns, pages.queries, strict=True)):
        if place.name in named:
            texts = board.texts.get(place.name, {})
            number += len(board.suites)
            _script(out / f"{page}.js", f"QUERIES{number}", query_data(named[place.name], texts))
    for number, (pair, page) in enumerate(zip(board.pairs, pages.pairs, strict=True)):
        _script(out / f"{page}.js", "PAIR", pair_data(board, pair, named))
        _page(out / f"{page}.html", f"{pair.a} − {pair.b}", "pair", number, [f"../{page}.js"])


def is_free(out: Path) -> bool:
    """Whether a site may be written to a folder: there is none, nothing in it, or another site."""
    return not out.exists() or (out / DATA).exists() or not any(out.iterdir())


def _make_room(out: Path) -> None:
    earlier = (out / DATA).exists()
    for name in FOLDERS:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in (path for kind in ("html", "js") for path in folder.glob(f"*.{kind}")):
            if earlier:
                path.unlink()


def slugs(folder: str, names: Iterable[str]) -> list[str]:
    """A path below ``folder`` for each name, without extension, that any file system can hold."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:60]
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        path = f"{folder}/{plain}"
        taken = not plain or path in found
        found.append(f"{folder}/{plain}-{digest}".replace("/-", "/") if taken else path)
    return found


def script_json(value: Any) -> str:
    """JSON that can stand in a script, wherever it is put."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _script(path: Path, name: str, value: Any) -> None:
    path.write_text(f"window.{name}={script_json(value)};\n", encoding="ascii")


def _page(path: Path, title: str, kind: str, number: int, data: Sequence[str] = ()) -> Path:
    root = "." if kind == "index" else ".."
    names = (*SHARED, *MORE.get(kind, ()), kind)
    sources = [f"{root}/data.js", *data, *(f"{root}/{name}.js" for name in names)]
    scripts = "\n".join(f'<script src="{html.escape(source)}"></script>' for source in sources)
    shell = Template((SITE / "shell.html").read_text(encoding="utf-8"))
    content = shell.substitute(
        title=html.escape(one_line(title)), root=root, page=kind, id=number, scripts=scripts
    )
    path.write_text(content, encoding="utf-8")
    return path
