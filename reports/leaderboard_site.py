"""A leaderboard as a folder of static pages that open from disk.

Pages fetch nothing: their data lie beside them as scripts. Names come from results, which may be
anybody's, so they are only ever set as text, and nothing in a script file can end its element.
"""

import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from bench.leaderboard.records import (
    Board,
    Cell,
    Column,
    Mean,
    Pair,
    Row,
    Score,
    SuiteColumn,
    Versus,
)

SITE = files("reports") / "site"
KINDS = ("index", "model", "collection", "pair")
ASSETS = ("style.css", "theme.js", "page.js", "table.js", *(f"{kind}.js" for kind in KINDS))
DATA = "data.js"
PAGES = ("models", "collections", "pairs")
DIGITS = 6  # more than is ever shown

Plot = tuple[str, str]  # file below the site, title


def write_site(board: Board, out: Path, measure: str = "", plots: Sequence[Plot] = ()) -> Path:
    """Write all pages; returns the first one.

    Pages of models and collections of an earlier leaderboard in the same folder are removed.

    Args:
        measure: that is chosen when a page opens; "" for the main ones.
        plots: to be shown below the table.
    """
    _make_room(out)
    models = slugs("models", [row.name for row in board.rows])
    collections = slugs("collections", [column.name for column in board.columns])
    pairs = slugs("pairs", [f"{pair.a} - {pair.b}" for pair in board.pairs])
    pages = _Pages(models, collections, pairs)
    _script(out / DATA, "LEADERBOARD", _data(board, measure, pages, plots))
    for name in ASSETS:  # after the data, by which a site is known that was not finished
        (out / name).write_text((SITE / name).read_text(encoding="utf-8"), encoding="utf-8")
    first = len(board.suites)
    for number, (row, page) in enumerate(zip(board.rows, models, strict=True)):
        _script(out / f"{page}.js", "DETAILS", _details(board, row))
        _page(out / f"{page}.html", row.name, "model", number, [f"../{page}.js"])
    for number, (column, page) in enumerate(zip(board.columns, collections, strict=True), first):
        _page(out / f"{page}.html", column.name, "collection", number)
    for number, (pair, page) in enumerate(zip(board.pairs, pairs, strict=True)):
        _script(out / f"{page}.js", "PAIR", _pair(board, pair))
        _page(out / f"{page}.html", f"{pair.a} − {pair.b}", "pair", number, [f"../{page}.js"])
    return _page(out / "index.html", "Leaderboard", "index", 0)


@dataclass(frozen=True)
class _Pages:
    """Paths below the site, without extension, in the order of the board."""

    models: Sequence[str]
    collections: Sequence[str]
    pairs: Sequence[str]


def is_free(out: Path) -> bool:
    """Whether a site may be written to a folder: there is none, nothing in it, or another site."""
    return not out.exists() or (out / DATA).exists() or not any(out.iterdir())


def _make_room(out: Path) -> None:
    earlier = (out / DATA).exists()
    for name in PAGES:
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
    sources = [f"{root}/data.js", *data, *(f"{root}/{name}.js" for name in ("page", "table", kind))]
    scripts = "\n".join(f'<script src="{html.escape(source)}"></script>' for source in sources)
    shell = Template((SITE / "shell.html").read_text(encoding="utf-8"))
    content = shell.substitute(
        title=html.escape(title), root=root, page=kind, id=number, scripts=scripts
    )
    path.write_text(content, encoding="utf-8")
    return path


def _data(board: Board, measure: str, pages: _Pages, plots: Sequence[Plot]) -> dict[str, Any]:
    """All that is shown on more than one page; scores as lists, sources by number."""
    scores = [score for row in board.rows for score in _scores(row)]
    claimed = [*(score.source for score in scores), *(claim.source for claim in board.claims)]
    sources = {text: number for number, text in enumerate(dict.fromkeys(claimed))}
    places = [_suite(suite, board) for suite in board.suites]
    places += [
        _collection(column, page)
        for column, page in zip(board.columns, pages.collections, strict=True)
    ]
    for number, place in enumerate(places):
        place["id"] = number
    return {
        "measure": measure,
        "measures": board.measures,
        "results": board.results,
        "newest": board.newest,
        "resamples": board.resamples,
        "sources": list(sources),
        "places": places,
        "rows": [
            _row(board, row, page, sources)
            for row, page in zip(board.rows, pages.models, strict=True)
        ],
        "claims": [
            {
                "model": claim.model,
                "name": claim.name,
                "measure": claim.measure,
                "value": claim.value,
                "source": sources[claim.source],
            }
            for claim in board.claims
        ],
        "pairs": [
            {"rows": _rows_of(board, pair), "page": f"{page}.html"}
            for pair, page in zip(board.pairs, pages.pairs, strict=True)
        ],
        "plots": [{"file": file, "title": title} for file, title in plots],
    }


def _scores(row: Row) -> Iterable[Score]:
    for cell in row.cells.values():
        yield from cell.scores.values()
    for means in row.means.values():
        yield from (mean.score for mean in means.values() if mean.score)


def _suite(suite: SuiteColumn, board: Board) -> dict[str, Any]:
    found = dict.fromkeys(key for row in board.rows for key in row.means.get(suite.name, ()))
    return {
        "kind": "suite",
        "name": suite.name,
        "title": suite.title,
        "main": suite.main_measure,
        "measures": list(found),
        "members": suite.members,
        "collections": suite.collections,
        "official": True,
        "main_protocol": True,
        "track": "",
    }


def _collection(column: Column, page: str) -> dict[str, Any]:
    return {
        "kind": "collection",
        "name": column.name,
        "collection": column.collection,
        "title": column.about.get("title", ""),
        "page": f"{page}.html",
        "main": column.main_measure,
        "measures": column.measures,
        "official": column.official,
        "main_protocol": column.main,
        "track": column.title_track,
        "queries": column.queries,
        "documents": column.documents,
        "protocol": column.protocol,
        "about": column.about,
    }


def _row(board: Board, row: Row, page: str, sources: dict[str, int]) -> dict[str, Any]:
    first = len(board.suites)
    cells = {
        first + number: _cell(row.cells[column.name], sources)
        for number, column in enumerate(board.columns)
        if column.name in row.cells
    }
    means = {
        number: _mean(row.means[suite.name], sources)
        for number, suite in enumerate(board.suites)
        if row.means.get(suite.name)
    }
    judged = [cell.judged_at_10 for cell in row.cells.values() if cell.judged_at_10 is not None]
    return {
        "name": row.name,
        "title": row.title,
        "page": f"{page}.html",
        "recipe": row.recipe,
        "trainedOn": row.trained_on,
        "speed": _rounded(row.tokens_per_s),
        "device": row.speed_device,
        "judged": _rounded(min(judged, default=None)),
        "cells": means | cells,
    }


def _cell(cell: Cell, sources: dict[str, int]) -> dict[str, Any]:
    return {
        "s": {name: _score(score, sources) for name, score in cell.scores.items()},
        "d": int(cell.in_domain),
        "j": _rounded(cell.judged_at_10),
        "t": [_rounded(cell.tie_low), _rounded(cell.tie_high)],
        "r": cell.index_recall,
        "u": cell.unanswered,
        "v": _rounded(cell.tokens_per_s),
        "m": _rounded(cell.search_ms),
    }


def _mean(by_measure: dict[str, Mean], sources: dict[str, int]) -> dict[str, Any]:
    return {
        "s": {key: _score(one.score, sources) for key, one in by_measure.items() if one.score},
        "z": {
            key: [_rounded(one.zero_shot), one.zero_shot_members]
            for key, one in by_measure.items()
            if one.score
        },
        "g": {key: one.missing for key, one in by_measure.items() if one.missing},
    }


def _score(score: Score, sources: dict[str, int]) -> list[Any]:
    numbers = [_rounded(value) for value in (score.value, score.low, score.high)]
    return [*numbers, score.group, score.published, sources[score.source]]


def _details(board: Board, row: Row) -> dict[int, Any]:
    """What only the page of one model shows, by number of place."""
    return {
        number: {"facts": cell.facts, "warnings": cell.warnings}
        for number, column in enumerate(board.columns, len(board.suites))
        if (cell := row.cells.get(column.name))
    }


def _rows_of(board: Board, pair: Pair) -> list[int]:
    """Numbers of the two rows."""
    names = [row.name for row in board.rows]
    return [names.index(pair.a), names.index(pair.b)]


def _pair(board: Board, pair: Pair) -> dict[str, Any]:
    """Two rows, and a list for each place that they share."""
    places = [*(suite.name for suite in board.suites), *(one.name for one in board.columns)]
    return {
        "rows": _rows_of(board, pair),
        "versus": [
            [places.index(one.place), one.measure, *_difference(one)]
            for one in pair.versus
            if one.place in places
        ],
    }


def _difference(one: Versus) -> list[Any]:
    found = one.paired
    limits = [_rounded(found.low), _rounded(found.high)]
    tests = [found.p, one.p_holm]
    counts = [found.wins, found.ties, found.losses]
    return [_rounded(found.difference), *limits, *tests, *counts, _rounded(found.detectable)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
