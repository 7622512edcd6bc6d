"""Did a micro-benchmark become slower, beyond noise? Saved runs are compared.

    pytest tests/benchmarks/micro --benchmark-json=OLD.json     # at the baseline's commit
    pytest tests/benchmarks/micro --benchmark-json=NEW.json
    python -m tests.benchmarks.compare_micro OLD.json [OLD2.json ...] NEW.json [--again NEW2.json]

The rule. A benchmark is slower when two figures say so of every run of the new code against
every run of the baseline:

- the interval of the ratio of medians (99 %, bootstrap over the rounds of both runs) lies wholly
  above the threshold;
- the ratio of minima is above the threshold.

The threshold is 1 + tolerance, or, where it is larger, how far the times of the reference lie
apart (largest over smallest, in all runs): a fixed piece of work, timed before and after each
benchmark, that becomes slower with the machine and never with the code. Above 1.5 the machine was
too busy, and what is not slower is not passed either.

Slower code moves both. Other work on the machine during part of a run moves the median, but one
undisturbed round keeps the minimum; a single lucky round moves the minimum, but not the median.
Rounds of one run resemble each other more than rounds of two runs (memory layout, frequency,
neighbours), which no interval from rounds can know: the tolerance is there for it, and further
runs measure it, since what is no larger than the difference between two runs of the same code
cannot show in all pairs. ``faster`` is the same rule the other way round.

Timings compare only within one machine: the same processor, number of cores and of threads.
Exit code 0: nothing is slower; 1: something is; 2: it cannot be said (another machine, one that
was too busy, a file without the rounds, or a benchmark that only the baseline has). The last line
of stdout is one JSON document; times are in seconds.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from foundation.errors import BenchError

Doubles = npt.NDArray[np.float64]
Verdict = Literal["slower", "faster", "within noise"]

Changes = Mapping[str, tuple["Change", Verdict]]

TOLERANCE = 0.1
CONFIDENCE = 0.99
DRAWS = 9999
TOO_BUSY = 1.5
FEWEST_ROUNDS = 5  # below that the interval of a median is no interval


class Stats(msgspec.Struct, frozen=True):
    """Seconds of each round."""

    data: list[float]


class Extra(msgspec.Struct, frozen=True):
    """What `tests/benchmarks/micro` adds: seconds of the reference work around a benchmark."""

    reference_s: float


class Benchmark(msgspec.Struct, frozen=True):
    """One benchmark of a saved run."""

    fullname: str
    stats: Stats
    extra_info: Extra

    @property
    def rounds(self) -> Doubles:
        """Seconds of each round, float64 ``(rounds,)``."""
        return np.array(self.stats.data)


class Cpu(msgspec.Struct, frozen=True):
    """What a timing depends on most."""

    count: int
    brand_raw: str = "unknown processor"


class Machine(msgspec.Struct, frozen=True):
    """Where a run was measured."""

    cpu: Cpu
    threads: int
    python_version: str
    libraries: dict[str, str]

    def __str__(self) -> str:
        return f"{self.cpu.brand_raw}, {self.cpu.count} cores, {self.threads} threads"

    def versions(self) -> dict[str, str]:
        """What may explain a change without any change of the code."""
        return {"python": self.python_version, **self.libraries}


class Commit(msgspec.Struct, frozen=True):
    """The code that was measured."""

    id: str
    dirty: bool

    def __str__(self) -> str:
        return self.id[:10] + (" with changes" if self.dirty else "")


class SavedRun(msgspec.Struct, frozen=True):
    """The part of pytest-benchmark's file that a comparison needs."""

    machine_info: Machine
    commit_info: Commit
    benchmarks: list[Benchmark]

    def by_name(self) -> dict[str, Benchmark]:
        """The benchmarks by name."""
        return {one.fullname: one for one in self.benchmarks}


@dataclasses.dataclass(frozen=True)
class Change:
    """A benchmark in one run of the new code against one of the baseline; above 1 is slower.

    Attributes:
        old_s, new_s: medians.
        ratio: of the medians.
        low, high: interval of that ratio.
        minima_ratio: of the minima.
    """

    old_s: float
    new_s: float
    ratio: float
    low: float
    high: float
    minima_ratio: float

    def verdict(self, threshold: float) -> Verdict:
        """Where both figures are beyond the threshold, a ratio."""
        if min(self.low, self.minima_ratio) > threshold:
            return "slower"
        if max(self.high, self.minima_ratio) < 1 / threshold:
            return "faster"
        return "within noise"


def change(old: Benchmark, new: Benchmark) -> Change:
    """Compare two runs of a benchmark; always the same for the same rounds."""
    rng = np.random.default_rng(0)
    before, after = old.rounds, new.rounds
    ratios = bootstrap_medians(after, rng) / bootstrap_medians(before, rng)
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    old_s, new_s = float(np.median(before)), float(np.median(after))
    return Change(
        old_s,
        new_s,
        new_s / old_s,
        low,
        high,
        minima_ratio=float(after.min() / before.min()),
    )


def restlessness(runs: Sequence[SavedRun]) -> float:
    """How many times longer the same work took at the worst moment than at the best."""
    seconds = [one.extra_info.reference_s for run in runs for one in run.benchmarks]
    return max(seconds) / min(seconds) if seconds else 1.0


def bootstrap_medians(rounds: Doubles, rng: np.random.Generator) -> Doubles:
    """Medians of resampled rounds, float64 ``(DRAWS,)``.

    Nothing is resampled: the median of n uniform draws has the distribution
    Beta((n + 1) / 2, (n + 1) / 2) (Harrell and Davis, Biometrika 69, 1982; exact for odd n), and
    says which of the sorted rounds is the median.
    """
    half = (len(rounds) + 1) / 2
    medians: Doubles = np.quantile(rounds, rng.beta(half, half, DRAWS), method="inverted_cdf")
    return medians


def all_pairs(
    olds: Sequence[Benchmark], news: Sequence[Benchmark], threshold: float
) -> tuple[Change, Verdict]:
    """The change between the nearest two runs, and the verdict that all pairs share."""
    changes = [change(old, new) for old in olds for new in news]
    verdicts = {one.verdict(threshold) for one in changes}
    nearest = min(changes, key=lambda one: abs(math.log(one.ratio)))
    return nearest, verdicts.pop() if len(verdicts) == 1 else "within noise"


def compare(olds: Sequence[SavedRun], news: Sequence[SavedRun], threshold: float) -> Changes:
    """Every benchmark that all runs have, by name.

    Raises:
        BenchError: as `check_conditions`, or a benchmark has too few rounds.
    """
    check_conditions(olds, news)
    before, after = [one.by_name() for one in olds], [one.by_name() for one in news]
    common = set.intersection(*(set(one) for one in [*before, *after]))
    return {
        name: all_pairs([one[name] for one in before], [one[name] for one in after], threshold)
        for name in after[0]
        if name in common
    }


def check_conditions(olds: Sequence[SavedRun], news: Sequence[SavedRun]) -> None:
    """Refuse runs that do not compare.

    Raises:
        BenchError: two machines, runs of several commits on one side, or too few rounds.
    """
    machines = dict.fromkeys(str(one.machine_info) for one in [*olds, *news])
    if len(machines) > 1:
        raise BenchError(
            f"timings of different machines do not compare: {'; '.join(machines)}",
            "measure both on one machine, with the same OMP_NUM_THREADS",
        )
    for runs in (olds, news):
        commits = dict.fromkeys(one.commit_info.id for one in runs)
        if len(commits) > 1:
            raise BenchError(
                f"runs that should be of the same code are of {' and '.join(commits)}",
                "several runs of one commit show the noise between runs",
            )
    for one in (one for run in [*olds, *news] for one in run.benchmarks):
        if len(one.rounds) < FEWEST_ROUNDS:
            raise BenchError(
                f"{one.fullname} has {len(one.rounds)} rounds: too few for an interval",
                f"measure with --benchmark-min-rounds={FEWEST_ROUNDS} or more",
            )


def read_saved(path: Path) -> SavedRun:
    """Read a file of pytest-benchmark.

    Raises:
        BenchError: it cannot be read, or lacks what a comparison needs.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=SavedRun)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BenchError(
            f"{path} is not a saved run of tests/benchmarks/micro: {error}",
            "save one with pytest tests/benchmarks/micro --benchmark-json=FILE",
        ) from error


def gone(olds: Sequence[SavedRun], changes: Changes) -> list[str]:
    """Benchmarks of the baseline that were not compared."""
    known = {name for one in olds for name in one.by_name()}
    return sorted(known - set(changes))


def changes_table(changes: Changes) -> str:
    """One line a benchmark."""
    interval = f"{CONFIDENCE:.0%} interval"
    headers = ["benchmark", "old ms", "new ms", "ratio", interval, "of minima", "verdict"]
    cells = [
        [
            name,
            f"{one.old_s * 1e3:.2f}",
            f"{one.new_s * 1e3:.2f}",
            f"{one.ratio:.2f}",
            f"{one.low:.2f}–{one.high:.2f}",
            f"{one.minima_ratio:.2f}",
            verdict,
        ]
        for name, (one, verdict) in changes.items()
    ]
    alignment = ["left", *["right"] * 5, "left"]
    table = tabulate(cells, headers, tablefmt="github", colalign=alignment, disable_numparse=True)
    return str(table)


def changed_versions(old: SavedRun, new: SavedRun) -> list[str]:
    """Libraries whose version differs, as ``numpy 2.3.0 -> 2.4.0``."""
    before, after = old.machine_info.versions(), new.machine_info.versions()
    return [
        f"{name} {version} -> {after.get(name)}"
        for name, version in before.items()
        if version != after.get(name)
    ]


def report(
    olds: Sequence[SavedRun], news: Sequence[SavedRun], changes: Changes
) -> dict[str, object]:
    """What is printed as JSON."""
    return {
        "machine": str(news[0].machine_info),
        "old_commit": str(olds[0].commit_info),
        "old_runs": len(olds),
        "new_commit": str(news[0].commit_info),
        "new_runs": len(news),
        "changed_versions": changed_versions(olds[0], news[0]),
        "confidence": CONFIDENCE,
        "gone": gone(olds, changes),
        "benchmarks": {
            name: {**dataclasses.asdict(one), "verdict": verdict}
            for name, (one, verdict) in changes.items()
        },
    }


def exit_code(changes: Changes, unknown: bool) -> int:
    """1 where something is slower, else 2 where something could not be judged, else 0."""
    if any(verdict == "slower" for _, verdict in changes.values()):
        return 1
    return 2 if unknown else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print."""
    options = _options(arguments)
    try:
        olds, news = (
            [read_saved(path) for path in paths]
            for paths in (options.old, [options.new, *options.again])
        )
        threshold = max(1 + options.tolerance, restlessness([*olds, *news]))
        changes = compare(olds, news, threshold)
    except BenchError as error:
        print(f"error: {error}\n{error.hint}", file=sys.stderr)
        return 2
    missing, busy = gone(olds, changes), restlessness([*olds, *news]) > TOO_BUSY
    print(f"{olds[0].commit_info} -> {news[0].commit_info} on {news[0].machine_info}\n")
    print(changes_table(changes))
    print(f"\nthreshold: {threshold:.2f}")
    for name in changed_versions(olds[0], news[0]):
        print(f"other version: {name}")
    for name in missing:
        print(f"{name} was not measured: measure it, or renew the baseline", file=sys.stderr)
    if busy:
        print("the machine was too busy: measure again when it is quiet", file=sys.stderr)
    print(json.dumps(report(olds, news, changes) | {"threshold": threshold, "too_busy": busy}))
    return exit_code(changes, bool(missing) or busy)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", nargs="+", type=Path, help="runs of the baseline, of one commit")
    parser.add_argument("new", type=Path, help="the run to judge")
    parser.add_argument(
        "--again", nargs="+", type=Path, default=[], help="further runs of the new code"
    )
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, help="slower by this share is accepted"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
