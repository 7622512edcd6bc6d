"""A leaderboard as a folder of static pages that open from disk.

Pages fetch nothing: their data lie beside them as scripts, names once and scores as short lists.
Names come from results, which may be anybody's, so they are only ever set as text, and nothing in a
script file can end its element.

The folder is written again and again, and only what was written before is replaced:
``site-files.txt`` lists the files of the site. A path is in the list before its file is there, so
that what a killed process left is known, and what somebody else put there is never touched.
"""

import hashlib
import html
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from string import Template
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from bench.boards.records import (
    Board,
    Cell,
    CollectionColumn,
    Mean,
    Pair,
    Row,
    Score,
    SuiteColumn,
)
from bench.comparing.statistics import Difference
from foundation import files as whole
from foundation.errors import BenchError, naming
from foundation.printable import one_line
from reports import format as fmt
from reports.leaderboard import legend, lowest_judged

if TYPE_CHECKING:
    from reports.plots.leaderboard import Drawing

LIST = "site-files.txt"
HEADING = "# Files of a leaderboard, which the next one replaces. All others here stay."


def check_free(root: Path) -> None:
    """Refuse a folder that holds something else than an earlier site.

    Raises:
        BenchError: it is a file, or a folder with files but without a list of them.
    """
    if root.is_dir() and any(root.iterdir()) and _listed(root) is None:
        raise BenchError(
            f"{root} holds files that no leaderboard wrote: it has no {LIST}",
            "name a new folder with --out; where it is an old leaderboard, delete it",
        )


class SiteFolder:
    """A site while it is written: open it in a ``with`` statement.

    When the block ends well, files of the site before that were not written again are gone.

    Raises:
        BenchError: the folder holds files of somebody else.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: set[str] = set()
        self._written: dict[str, None] = {}

    def __enter__(self) -> "SiteFolder":
        check_free(self.root)
        self.root.mkdir(parents=True, exist_ok=True)
        self._known = _listed(self.root) or set()
        self._write_list(self._known)
        self._open_list: BinaryIO = (self.root / LIST).open("ab", buffering=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open_list.close()
        if kind is None:
            for name in self._known - self._written.keys():
                self._path(name).unlink(missing_ok=True)
            self._write_list(self._written.keys())

    def write(self, name: str, content: bytes) -> Path:
        """Write a file; returns its path.

        Args:
            name: its path below the folder, with slashes.

        Raises:
            BenchError: a file of somebody else has this name, or the path leads out of the folder.
        """
        path = self._path(name)
        if name not in self._known:
            if path.exists() or path.is_symlink():
                raise BenchError(
                    f"{path} is in the way, and no file of the leaderboard",
                    "move it elsewhere, or name a new folder with --out",
                )
            self._open_list.write(f"{name}\n".encode())
            self._known.add(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may have become a link
        with naming(path):
            path.write_bytes(content)
        self._written[name] = None
        return path

    def _path(self, name: str) -> Path:
        path = self.root / name
        if not path.parent.resolve().is_relative_to(self.root.resolve()):
            raise BenchError(f"{path.parent} leads out of {self.root}", "delete this link")
        return path

    def _write_list(self, names: Collection[str]) -> None:
        with whole.replacing(self.root / LIST) as file:
            file.write("\n".join([HEADING, *sorted(names), ""]).encode())


def _listed(root: Path) -> set[str] | None:
    """Paths in the list of a site; None where there is none."""
    try:
        heading, *names = (root / LIST).read_text(encoding="utf-8", errors="replace").split("\n")
    except (FileNotFoundError, IsADirectoryError):
        return None
    whole = names[:-1]  # the last is empty, or was cut
    return set(filter(_is_below, whole)) if heading == HEADING else None


def _is_below(name: str) -> bool:
    """Return True for a path that does not climb."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


DIGITS = 6  # more than is ever shown

Plot = tuple[str, str]  # path below the site, without its ending; title


@dataclass(frozen=True)
class Pages:
    """Paths below the site, without extension, in the order of the board."""

    models: Sequence[str]
    collections: Sequence[str]
    pairs: Sequence[str]


def board_data(board: Board, measure: str, pages: Pages, plots: Sequence[Plot]) -> dict[str, Any]:
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
        "legend": legend(board),
        "sources": list(sources),
        "places": places,
        "rows": [
            _row(board, row, page, sources)
            for row, page in zip(board.rows, pages.models, strict=True)
        ],
        "claims": [
            msgspec.structs.asdict(claim) | {"source": sources[claim.source]}
            for claim in board.claims
        ],
        "pairs": [
            {"rows": _rows_of(board, pair), "page": f"{page}.html"}
            for pair, page in zip(board.pairs, pages.pairs, strict=True)
        ],
        "published": board.published,
        "plots": [{"name": name, "title": title} for name, title in plots],
    }


def _scores(row: Row) -> Iterable[Score]:
    for cell in row.cells.values():
        yield from cell.scores.values()
    for means in row.means.values():
        yield from (mean.score for mean in means.values() if mean.score)


def _suite(suite: SuiteColumn, board: Board) -> dict[str, Any]:
    measures = dict.fromkeys(key for row in board.rows for key in row.means.get(suite.name, ()))
    return {
        "kind": "suite",
        "name": fmt.place(suite.name),
        "title": suite.title,
        "main": suite.main_measure,
        "measures": list(measures),
        "members": suite.members,
        "collections": suite.collections,
        "official": True,
        "main_protocol": True,
        "track": "",
    }


def _collection(column: CollectionColumn, page: str) -> dict[str, Any]:
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
    return {
        "name": row.name,
        "model": row.model,
        "title": row.title,
        "page": f"{page}.html",
        "recipe": row.recipe,
        "trainedOn": row.trained_on,
        "speed": _rounded(row.tokens_per_s),
        "device": row.speed_device,
        "parameters": [row.parameters.total, row.parameters.adapter] if row.parameters else None,
        "judged": _rounded(lowest_judged(row)),
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
        "s": {key: _score(mean.score, sources) for key, mean in by_measure.items() if mean.score},
        "z": {
            key: [_rounded(mean.zero_shot), mean.zero_shot_members]
            for key, mean in by_measure.items()
            if mean.score
        },
        "g": {key: mean.missing for key, mean in by_measure.items() if mean.missing},
    }


def _score(score: Score, sources: dict[str, int]) -> list[Any]:
    numbers = [_rounded(value) for value in (score.value, score.low, score.high)]
    return [*numbers, score.group, score.published, sources[score.source]]


def model_data(board: Board, row: Row) -> dict[int, Any]:
    """Facts and warnings that only the page of one model shows, by number of place."""
    return {
        number: {"facts": cell.facts, "warnings": cell.warnings}
        for number, column in enumerate(board.columns, len(board.suites))
        if (cell := row.cells.get(column.name))
    }


def _rows_of(board: Board, pair: Pair) -> list[int]:
    """Numbers of the two rows."""
    names = [row.name for row in board.rows]
    return [names.index(pair.a), names.index(pair.b)]


def pair_data(board: Board, pair: Pair) -> dict[str, Any]:
    """Two rows, and a list for each place that they share."""
    places = [*(suite.name for suite in board.suites), *(column.name for column in board.columns)]
    return {
        "rows": _rows_of(board, pair),
        "versus": [
            [places.index(versus.on), versus.measure, *_difference(versus)]
            for versus in pair.versus
            if versus.on in places
        ],
    }


def _difference(found: Difference) -> list[Any]:
    limits = [_rounded(found.low), _rounded(found.high)]
    tests = [found.p, found.p_adjusted]
    counts = [found.wins, found.ties, found.losses]
    return [_rounded(found.difference), *limits, *tests, *counts, _rounded(found.detectable)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


SITE = files("reports") / "site"
KINDS = ("index", "model", "collection", "pair")
SHARED = ("page", "table")  # scripts of every page
ASSETS = (
    "style.css",
    "theme.js",
    *(f"{name}.js" for name in (*SHARED, *KINDS)),
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
        for number, (pair, page) in enumerate(zip(board.pairs, pages.pairs, strict=True)):
            _write_script(site, page, "PAIR", pair_data(board, pair))
            _write_page(site, page, f"{pair.a} − {pair.b}", "pair", number, [f"../{page}.js"])
        plots = [_write_plot(site, *picture) for picture in pictures]
        _write_data(site, board, measure, pages, plots)
    return index


def _pages_of(board: Board) -> Pages:
    """Paths of all pages, without their endings."""
    return Pages(
        models=slugs("models", [row.name for row in board.rows]),
        collections=slugs("collections", [column.name for column in board.columns]),
        pairs=slugs("pairs", [f"{pair.a} - {pair.b}" for pair in board.pairs]),
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
    sources = [f"{root}/{DATA}", *data, *(f"{root}/{name}.js" for name in (*SHARED, kind))]
    scripts = "\n".join(f'<script src="{html.escape(source)}"></script>' for source in sources)
    shell = Template((SITE / "shell.html").read_text(encoding="utf-8"))
    content = shell.substitute(
        title=html.escape(one_line(title)), root=root, page=kind, id=number, scripts=scripts
    )
    return site.write(f"{page}.html", content.encode())
