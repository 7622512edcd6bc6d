"""Published scores, measured again with real data and real weights.

Run ``python tests/reproduce.py [--data-dir DIR] [--cache-dir DIR] [--only beir/scifact ...]``,
or ``tox -e reproduce``. Two questions that unit tests with small oracles cannot answer:

* Does the whole path (reading, tokenizing, pooling, searching, scoring) give the scores that were
  published for the same checkpoint? all-MiniLM-L6-v2 is encoded afresh, unless its vectors are in
  the cache, and compared with the ``expected`` scores of its card.
* Do rankings that others made get the scores that trec_eval gives them? This covers scoring
  alone, with graded judgements and tied scores, to the six digits known.

The data folder (BENCH_DATA by default) holds collections in BEIR's layout, ``msmarco-sample`` and
``runs``; nothing is downloaded. Encoding both collections takes minutes on two cores. The table
goes to stdout. Exit code 0: all within tolerance; 1: a miss; 2: none, but data are missing or are
not the published ones.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import platformdirs
from tabulate import tabulate

from bench.evaluate.pipeline import evaluate
from bench.evaluate.retrieval import EvaluationOptions, LoadedModel
from bench.evaluate.runs import read_run_file
from bench.evaluate.scoring import score
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset, open_dataset
from foundation.errors import BenchError
from retrievers.encoders.routed import open_encoder
from retrievers.models.model import resolve_model

MODEL = "minilm"
COLLECTIONS = ("beir/scifact", "beir/nfcorpus")
MEASURES = ("nDCG@10", "R@100")

# What trec_eval gives for each ranking. Binary measures of TREC-DL count a grade of 2 as relevant,
# save for the reciprocal rank, which counts 1, as SciFact's measures do.
DL = ("nDCG@10", "RR", "AP(rel=2)", "R(rel=2)@100", "R(rel=2)@1000")
SCIFACT = ("nDCG@10", "RR", "AP", "R@100", "R@1000")
RUNS = {
    "dl19.bm25": (DL, (0.505831, 0.824544, 0.247600, 0.491050, 0.491050)),
    "dl19.bm25-webis": (DL, (0.479540, 0.795028, 0.286448, 0.488133, 0.755332)),
    "dl19.tas-b": (DL, (0.721033, 0.950997, 0.404959, 0.609660, 0.609660)),
    "dl19.repllama": (DL, (0.738440, 0.988372, 0.529775, 0.660192, 0.872105)),
    "dl20.bm25": (DL, (0.479637, 0.826923, 0.268536, 0.559868, 0.559868)),
    "dl20.tas-b": (DL, (0.685361, 0.924162, 0.452027, 0.713472, 0.713472)),
    "scifact.all-minilm-l6-v2": (SCIFACT, (0.645082, 0.610968, 0.603074, 0.925000, 0.925000)),
}
ORACLE = "trec_eval"
RUN_TOLERANCE = 5.1e-7  # six digits are known, so half of the last one, and float noise

HIT, MISS, NO_DATA = "ok", "MISS", "no data"
HEADERS = (
    "what",
    "measure",
    "measured",
    "published",
    "difference",
    "tolerance",
    "source",
    "verdict",
)


class Line(NamedTuple):
    """One figure: what was measured (None where data are missing) and what is published."""

    what: str
    measure: str
    measured: float | None
    published: float
    tolerance: float
    source: str

    @property
    def verdict(self) -> str:
        """Whether the two agree."""
        if self.measured is None:
            return NO_DATA
        return HIT if abs(self.measured - self.published) <= self.tolerance else MISS

    def cells(self) -> tuple[str, ...]:
        """The line as it is printed."""
        known = self.measured is not None
        return (
            self.what,
            self.measure,
            f"{self.measured:.6f}" if known else "",
            f"{self.published:.6f}",
            f"{self.measured - self.published:+.6f}" if known else "",
            f"{self.tolerance:.1g}",
            self.source,
            self.verdict,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _options(arguments)
    resolved = resolve_model(MODEL)
    model = LoadedModel(resolved, open_encoder(resolved))
    lines = [
        *(line for name in options.only for line in model_lines(name, model, options)),
        *(line for name in RUNS if _wanted(name, options) for line in run_lines(name, options)),
    ]
    cells = [line.cells() for line in lines]
    print(tabulate(cells, HEADERS, tablefmt="github", disable_numparse=True))
    verdicts = [line.verdict for line in lines]
    print(f"\n{verdicts.count(HIT)} of {len(lines)} figures reproduced")
    if MISS in verdicts:
        return 1
    return 2 if NO_DATA in verdicts else 0


def model_lines(name: str, model: LoadedModel, options: argparse.Namespace) -> Iterator[Line]:
    """The model on one collection, by the same path as ``python -m bench run``."""
    expected = [e for e in model.model.card.expected if e.dataset == name and e.measure in MEASURES]
    if not expected:
        raise SystemExit(f"the card {MODEL} has no published score on {name}")
    measured = _evaluate(name, model, options)
    for claim in expected:
        yield Line(
            f"{MODEL} on {name}",
            claim.measure,
            measured.get(claim.measure),
            claim.value,
            claim.tolerance,
            claim.source,
        )


def _evaluate(name: str, model: LoadedModel, options: argparse.Namespace) -> dict[str, float]:
    workspace = Workspace(options.cache_dir, options.data_dir, offline=True)
    try:
        opened = workspace.open(name)
    except BenchError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return {}
    return evaluate(
        workspace.prepare(opened, model, EvaluationOptions(measures=MEASURES))
    ).result.measures


def run_lines(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """Somebody's run file, scored."""
    measures, figures = RUNS[name]
    measured: dict[str, float] = {}
    try:
        qrels = _judging(name, options).qrels
        scores = score(
            read_run_file(options.data_dir / "runs" / f"{name}.trec").run, qrels, measures
        )
        measured = {measure: scores.mean(measure) for measure in measures}
    except BenchError as error:
        print(f"{name}: {error}", file=sys.stderr)
    for measure, figure in zip(measures, figures, strict=True):
        yield Line(f"run {name}", measure, measured.get(measure), figure, RUN_TOLERANCE, ORACLE)


def _judging(run: str, options: argparse.Namespace) -> Dataset:
    """The collection whose judgements score a run; TREC-DL's are complete in the sample."""
    family = run.split(".")[0]
    if family == "scifact":
        return _open("beir/scifact", options)
    return _open(str(options.data_dir / "msmarco-sample"), options, split=family)


def _open(name: str, options: argparse.Namespace, split: str | None = None) -> Dataset:
    return open_dataset(
        name,
        cache_dir=options.cache_dir,
        data_dir=options.data_dir,
        split=split,
        download=False,
    )


def _wanted(run: str, options: argparse.Namespace) -> bool:
    """Runs on TREC-DL belong to no collection that can be chosen: they are always scored."""
    return not run.startswith("scifact") or "beir/scifact" in options.only


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    data, cache = os.environ.get("BENCH_DATA"), platformdirs.user_cache_path("retrieval-bench")
    parser.add_argument("--data-dir", type=Path, default=Path(data) if data else None)
    parser.add_argument("--cache-dir", type=Path, default=cache)
    parser.add_argument("--only", nargs="+", default=COLLECTIONS, metavar="COLLECTION")
    options = parser.parse_args(arguments)
    if options.data_dir is None or not options.data_dir.is_dir():
        parser.exit(2, "no data: set BENCH_DATA, or --data-dir, to a folder with collections\n")
    return options


if __name__ == "__main__":
    sys.exit(main())
