"""What is kept and handed on: results, claims, presets, grids, reports."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.mutations import mutate_tree
from tests.fuzz.subjects.base import CLOSE, Finished, Subject
from tests.fuzz.subjects.sample import FACTS, write_beir


class Results(Subject):
    """Stored results of two models, compared, ranked, checked and exported."""

    name = "results"
    codes = (0, 1, 2, 3, 4, 5)

    def make(self, folder: Path) -> None:
        from bench.__main__ import main

        write_beir(folder / "collection", FACTS.replace("true", "false"))
        words = ["run", str(folder / "collection"), "--model", "hashing", "bm25"]
        main([*words, "--out", str(folder / "input"), "--cache-dir", str(folder / "cache")])

    def command(self, rng: Random, folder: Path) -> list[str]:
        place, common = str(folder / "input"), ["--json"]
        drawn = ["--resamples", "199"]
        commands = (
            ["compare", "hashing", "bm25", "--results", place, *drawn],
            ["compare", "hashing", "bm25", "--results", place, "--changed", "2", *drawn],
            ["leaderboard", "--results", place, *drawn],
            ["leaderboard", "--results", place, "--pair", "hashing", "bm25", *drawn],
            ["export", "trec", "hashing", "--results", place, "--out", str(folder / "exported")],
            ["export", "model-index", "bm25", "--results", place, "--out", str(folder / "card")],
            [
                *("check", "hashing", "--baseline", "bm25", "--results", place, *drawn),
                *("--on", str(folder / "collection"), "--cache-dir", str(folder / "cache")),
            ],
        )
        return [*rng.choice(commands), *common]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        known = list(consistent_means(folder / "input"))
        for measure, value in stated_means(finished.document()):
            if not any(name == measure and abs(mean - value) < CLOSE for name, mean in known):
                return f"{measure} of {value}, and consistent results have {known}"
        return ""


def consistent_means(folder: Path) -> Iterator[tuple[str, float]]:
    """Measures and means that a record states and its values of queries have."""
    import pyarrow.parquet as pq

    for path in folder.rglob("per_query.parquet"):
        try:
            record = json.loads(path.with_name("result.json").read_bytes())
            table = pq.read_table(path)
            for name, column in zip(table.column_names, table.columns, strict=True):
                mean = float(np.mean(column.to_pylist())) if name in record["measures"] else None
                if mean is not None and abs(record["measures"][name] - mean) < CLOSE:
                    yield name, mean
        except (OSError, ValueError, TypeError, KeyError):
            continue  # nothing of a damaged result may be shown


def stated_means(document: Any) -> Iterator[tuple[str, float]]:
    """Measures and means in the JSON of ``compare``, ``leaderboard`` and ``check``."""
    if not isinstance(document, dict):
        return
    for row in (row for one in document.get("comparisons", ()) for row in one["collections"]):
        if not row["left_out"]:
            yield from ((row["measure"], row[key]) for key in ("mean_a", "mean_b") if row[key])
    for row in (row for one in document.get("against", ()) for row in one["rows"]):
        yield from ((row["measure"], row[key]) for key in ("candidate", "baseline") if row[key])
    for cell in (cell for row in document.get("rows", ()) for cell in row["cells"].values()):
        yield from ((name, score["value"]) for name, score in cell["scores"].items())


def numbers_in(text: str) -> list[float]:
    """Everything in a text that reads as a number."""
    found = re.findall(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", text)
    return [float(one.replace("_", "")) for one in found if len(one) < 300]


def near(number: float, value: float) -> bool:
    """Equal as a share or as percent."""
    return abs(number - value) < CLOSE or abs(number / 100 - value) < CLOSE


class TomlFile(Subject):
    """Presets, grids and published scores: read, and not less than what they say."""

    name = "toml"

    def make(self, folder: Path) -> None:
        root = Path(__file__).resolve().parents[3]
        for kind, source in {
            "pretrain": "retrievers/training/presets/pretrain",
            "finetune": "retrievers/training/presets/finetune",
            "ablate": "bench/experiments/plans",
            "published": "bench/boards/published",
        }.items():
            files = sorted((root / source).glob("*.toml"), key=lambda path: path.stat().st_size)
            for path in files[:6]:
                (folder / "input" / kind).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / "input" / kind)

    def mutate(self, rng: Random, folder: Path) -> str:
        kind = rng.choice(sorted(path.name for path in (folder / "input").iterdir()))
        name = rng.choice(sorted(path.name for path in (folder / "input" / kind).iterdir()))
        chosen = folder / "chosen" / kind
        chosen.mkdir(parents=True)
        shutil.copy(folder / "input" / kind / name, chosen)
        return f"{kind}/{mutate_tree(rng, chosen)}"

    def command(self, rng: Random, folder: Path) -> Callable[[], Any]:
        (kind,) = ((folder / "chosen").iterdir()) if (folder / "chosen").exists() else [None]
        if kind is None:
            return lambda: 0
        return lambda: self._read(kind)

    def _read(self, kind: Path) -> int:
        from bench.boards.published_scores import publications
        from bench.experiments.grid import load_ablation
        from retrievers.training.finetune import finetune_preset
        from retrievers.training.pretrain import preset

        readers: dict[str, Callable[[str], Any]] = {
            "pretrain": preset.FILES.load,
            "finetune": finetune_preset.FILES.load,
            "ablate": load_ablation,
        }
        if kind.name == "published":
            publications(kind)
        else:
            for path in kind.glob("*.toml"):
                readers[kind.name](str(path))
        return 0


class Reports(Subject):
    """What ``speed`` and ``ablate`` wrote down earlier."""

    name = "reports"

    def make(self, folder: Path) -> None:
        import msgspec

        from tests.support.ablation_report import FULL
        from tests.support.speed_report import REPORT

        place = folder / "input"
        for name, content in {
            "speed.json": msgspec.json.encode(REPORT),
            "report.json": msgspec.json.encode(FULL),
        }.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)

    def command(self, rng: Random, folder: Path) -> Callable[[], Any]:
        return lambda: self._read(folder / "input")

    def _read(self, place: Path) -> int:
        from bench.cli.commands import speed
        from bench.experiments.report_record import Report
        from foundation.records import read_json
        from reports.experiment import markdown
        from reports.speed import speed_tables

        print(speed_tables(speed.read_report(place / "speed.json")))
        print(markdown(read_json(place / "report.json", Report)))
        return 0
