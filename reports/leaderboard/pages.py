"""A leaderboard as a folder of static pages that open from disk.

Pages fetch nothing: their data lie beside them as scripts. Names come from results, which may be
anybody's, so they are only ever set as text, and nothing in a script file can end its element.
"""

import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from bench.boards.records import Board
from foundation.printable import one_line
from reports.leaderboard.data import (
    Pages,
    Plot,
    board_data,
    model_data,
    named_queries,
    pair_data,
    query_data,
)
from reports.leaderboard.folder import SiteFolder

if TYPE_CHECKING:
    from reports.plots.leaderboard import Drawing

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


def write_site(
    board: Board, out: Path, measure: str = "", pictures: "Iterable[Drawing]" = ()
) -> Path:
    """Write all pages; returns the first one.

    The files of an earlier leaderboard in the same folder are replaced or removed, no others.

    Args:
        measure: that is chosen when a page opens; "" for the main ones.
        pictures: to be drawn once all pages are there, and shown below the table.

    Raises:
        BenchError: the folder holds files of somebody else.
    """
    with SiteFolder(out) as site:
        pages = _pages_of(board)
        _write_data(site, board, measure, pages, ())
        for name in ASSETS:
            site.write(name, (SITE / name).read_bytes())
        index = _write_page(site, "index", "Leaderboard", "index", 0)
        first = len(board.suites)
        for number, (row, page) in enumerate(zip(board.rows, pages.models, strict=True)):
            _write_script(site, page, "DETAILS", model_data(board, row))
            _write_page(site, page, row.name, "model", number, [f"../{page}.js"])
        for number, (column, page) in enumerate(
            zip(board.columns, pages.collections, strict=True), first
        ):
            _write_page(site, page, column.name, "collection", number)
        _write_pairs(site, board, pages)
        plots = [_write_plot(site, *picture) for picture in pictures]
        _write_data(site, board, measure, pages, plots)
    return index


def _pages_of(board: Board) -> Pages:
    """Paths of all pages, without their endings."""
    collections = [column.name for column in board.columns]
    return Pages(
        models=slugs("models", [row.name for row in board.rows]),
        collections=slugs("collections", collections),
        pairs=slugs("pairs", [f"{pair.a} - {pair.b}" for pair in board.pairs]),
        queries=slugs("queries", collections),
    )


def _write_data(
    site: SiteFolder, board: Board, measure: str, pages: Pages, plots: Sequence[Plot]
) -> None:
    """Write the data that all pages share; again once there are pictures."""
    _write_script(site, "data", "LEADERBOARD", board_data(board, measure, pages, plots))


def _write_plot(
    site: SiteFolder, name: str, title: str, drawn: Callable[[], dict[str, bytes]]
) -> Plot:
    for ending, content in drawn().items():
        site.write(f"plots/{name}{ending}", content)
    return f"plots/{name}", title


def _write_pairs(site: SiteFolder, board: Board, pages: Pages) -> None:
    """A page for each pair; the queries that any of them names are one script a collection."""
    named = named_queries(board)
    for number, (place, page) in enumerate(zip(board.columns, pages.queries, strict=True)):
        if place.name in named:
            texts = board.texts.get(place.name, {})
            number += len(board.suites)
            _write_script(site, page, f"QUERIES{number}", query_data(named[place.name], texts))
    for number, (pair, page) in enumerate(zip(board.pairs, pages.pairs, strict=True)):
        _write_script(site, page, "PAIR", pair_data(board, pair, named))
        _write_page(site, page, f"{pair.a} − {pair.b}", "pair", number, [f"../{page}.js"])


def slugs(folder: str, names: Iterable[str]) -> list[str]:
    """A path below ``folder`` for each name, without extension, that any file system can hold."""
    paths: list[str] = []
    for name in names:
        plain = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:60]
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        path = f"{folder}/{plain}"
        taken = not plain or path in paths
        paths.append(f"{folder}/{plain}-{digest}".replace("/-", "/") if taken else path)
    return paths


def script_json(value: Any) -> str:
    """JSON that can stand in a script, wherever it is put."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _write_script(site: SiteFolder, page: str, name: str, value: Any) -> None:
    site.write(f"{page}.js", f"window.{name}={script_json(value)};\n".encode("ascii"))


def _write_page(
    site: SiteFolder, page: str, title: str, kind: str, number: int, data: Sequence[str] = ()
) -> Path:
    root = "." if kind == "index" else ".."
    names = (*SHARED, *MORE.get(kind, ()), kind)
    sources = [f"{root}/{DATA}", *data, *(f"{root}/{name}.js" for name in names)]
    scripts = "\n".join(f'<script src="{html.escape(source)}"></script>' for source in sources)
    shell = Template((SITE / "shell.html").read_text(encoding="utf-8"))
    content = shell.substitute(
        title=html.escape(one_line(title)), root=root, page=kind, id=number, scripts=scripts
    )
    return site.write(f"{page}.html", content.encode())
