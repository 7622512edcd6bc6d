"""How long does a leaderboard of 100 models on 30 collections take, and how large is its site?

Records are synthetic but valid: the collections are declared ones with their own numbers of
queries (at most --queries), scores share the difficulty of a query, and one in five is zero. The
time to read and check everything (``read_s``), to resample it (``assemble_s``) and to write the
pages (``site_s``), and their size, are reported apart. As for the site, every measure is
resampled, and every model is compared with the next one, query by query, without rankings and
texts; claims of every publication are shown. ``plots_s`` is for the pictures.

    python -m tests.benchmarks.leaderboard_speed [--models 100] [--collections 30] [--keep DIR]

The last line of stdout is one JSON document; times are in seconds.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.boards.assembly import Choice, assemble
from bench.boards.rows import results_in
from bench.comparing.statistics import Resampling
from bench.results.result import Timings
from datasets_cfg.catalogue import dataset_names, expand, facts_for
from reports.pages import write_site
from reports.plots.leaderboard import pictures
from retrievers.models.card import all_cards, card_names
from tests.support.leaderboards import recipe_of, store

MEASURES = ("nDCG@10", "R@100", "R@1000")


def write_results(out: Path, models: int, collections: int, most: int) -> None:
    """Results of every model on every collection."""
    rng = np.random.default_rng(0)
    known = dict.fromkeys([*expand(["beir", "msmarco"]), *dataset_names()])
    cards = card_names()
    names = [cards[n] if n < len(cards) else f"checkpoint-{n}" for n in range(models)]
    ability = rng.normal(0, 0.1, models)
    speed = rng.uniform(2_000, 40_000, models)
    for collection in list(known)[:collections]:
        queries = min(facts_for(collection).counts.queries or most, most)
        difficulty = rng.normal(0.3, 0.3, queries)
        for model, name in enumerate(names):
            own = rng.normal(0, 0.15, queries)
            scores = np.clip(difficulty + ability[model] + own, 0, 1)
            values = {measure: scores ** (1 / (n + 1)) for n, measure in enumerate(MEASURES)}
            store(
                out / name,
                name,
                collection,
                values,
                recipe=recipe_of(name, max_document_tokens=(128, 256, 512)[model % 3]),
                in_domain=(model + len(collection)) % 7 == 0,
                timings=Timings(
                    encode_documents_s=100.0,
                    encoded_documents=1000,
                    search_s=1.0,
                    encoded_tokens=int(100 * speed[model]),
                ),
            )


def measure(place: Path, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of each step, and bytes of what was written."""
    write_results(place / "results", options.models, options.collections, options.queries)
    start = time.perf_counter()
    stored = results_in(place / "results")
    read = time.perf_counter()
    choice = Choice(every_measure=True, neighbours=True, published=())
    board = assemble(stored, all_cards(), choice, Resampling(), opened=lambda protocol: "not here")
    assembled = time.perf_counter()
    write_site(board, place / "site")
    written = time.perf_counter()
    for _, _, render in pictures(board, ""):
        render()
    drawn = time.perf_counter()
    files = [path for path in (place / "site").rglob("*") if path.is_file()]
    return {
        "results": len(stored),
        "read_s": read - start,
        "assemble_s": assembled - read,
        "site_s": written - assembled,
        "plots_s": drawn - written,
        "site_files": len(files),
        "site_bytes": sum(path.stat().st_size for path in files),
        "data_bytes": (place / "site" / "data.js").stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a large leaderboard.")
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--collections", type=int, default=30)
    parser.add_argument("--queries", type=int, default=10_000, help="most of a collection")
    parser.add_argument("--keep", type=Path, help="keep results and site in this empty folder")
    options = parser.parse_args()
    if options.keep:
        found = measure(options.keep, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), options)
    for name, value in found.items():
        print(f"{name:12} {value:14,.1f}")
    shape = {"models": options.models, "collections": options.collections}
    where = {"cpus": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({**shape, "most_queries": options.queries, **found, **where}))


if __name__ == "__main__":
    main()
