"""When saved micro-benchmarks count as slower, on seconds whose truth is known."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import compare_micro
from tests.benchmarks.compare_micro import Benchmark, Extra, Stats, bootstrap_medians, main

ROOT = Path(__file__).parents[2]
MICRO = ROOT / "tests" / "benchmarks" / "micro"
MACHINE = {
    "cpu": {"brand_raw": "A processor", "count": 2},
    "threads": 2,
    "python_version": "3.11.7",
    "libraries": {"numpy": "2.3.0"},
}


def saved(path, rounds, machine=MACHINE, commit="a" * 40, reference_s=0.01):
    """A file as pytest-benchmark writes it, from the seconds of each benchmark."""
    benchmarks = [
        {
            "fullname": name,
            "name": name,
            "stats": {"data": list(seconds), "rounds": len(seconds)},
            "extra_info": {"reference_s": reference_s},
        }
        for name, seconds in rounds.items()
    ]
    content = {
        "machine_info": machine,
        "commit_info": {"id": commit, "dirty": False, "branch": "main"},
        "benchmarks": benchmarks,
        "version": "5.3.1",
    }
    path.write_text(json.dumps(content))
    return str(path)


def noisy(seed, median=0.1, sigma=0.03, rounds=20):
    """Seconds with a long right tail, as timings have."""
    rng = np.random.default_rng(seed)
    return median * (1 + np.abs(rng.normal(0, sigma, rounds)))


def change(old, new):
    """Compare seconds of rounds."""
    before, after = (Benchmark("one", Stats(list(seconds)), Extra(1.0)) for seconds in (old, new))
    return compare_micro.change(before, after)


@pytest.fixture
def old(tmp_path):
    return saved(tmp_path / "old.json", {"search": noisy(1), "score": noisy(2)})


def verdicts(capsys):
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    return {name: one["verdict"] for name, one in report["benchmarks"].items()}


def test_the_same_code_measured_twice_passes(tmp_path, old, capsys):
    new = saved(tmp_path / "new.json", {"search": noisy(3), "score": noisy(4)})
    assert main([old, new]) == 0
    assert verdicts(capsys) == {"search": "within noise", "score": "within noise"}


def test_a_slower_benchmark_fails_and_is_named(tmp_path, old, capsys):
    new = saved(tmp_path / "new.json", {"search": noisy(3, median=0.13), "score": noisy(4)})
    assert main([old, new]) == 1
    assert verdicts(capsys) == {"search": "slower", "score": "within noise"}


def test_a_faster_benchmark_passes_and_is_named(tmp_path, old, capsys):
    new = saved(tmp_path / "new.json", {"search": noisy(3, median=0.07), "score": noisy(4)})
    assert main([old, new]) == 0
    assert verdicts(capsys) == {"search": "faster", "score": "within noise"}


def test_a_slowdown_within_the_tolerance_passes(tmp_path, old):
    new = saved(tmp_path / "new.json", {"search": noisy(3, 0.13), "score": noisy(4)})
    assert main([old, new, "--tolerance", "0.5"]) == 0


def test_same_code_under_noise_between_runs_is_hardly_ever_called_slower():
    rng = np.random.default_rng(5)
    shifts = np.exp(rng.normal(0, 0.03, (200, 2)))
    called = [
        change(noisy(2 * i) * before, noisy(2 * i + 1) * after).verdict(1 + compare_micro.TOLERANCE)
        for i, (before, after) in enumerate(shifts)
    ]
    assert called.count("slower") <= 4


def test_a_slowdown_of_30_percent_is_found_under_noise_between_runs():
    rng = np.random.default_rng(6)
    shifts = np.exp(rng.normal(0, 0.03, (200, 2)))
    called = [
        change(noisy(2 * i) * before, 1.3 * noisy(2 * i + 1) * after).verdict(
            1 + compare_micro.TOLERANCE
        )
        for i, (before, after) in enumerate(shifts)
    ]
    assert called.count("slower") >= 190


def test_other_work_during_most_of_a_run_is_not_a_slowdown():
    disturbed = noisy(3)
    disturbed[2:] *= 2
    found = change(noisy(1), disturbed)
    assert found.low > 1.5
    assert found.verdict(1.1) == "within noise"


def test_one_lucky_round_of_the_baseline_is_not_a_slowdown():
    lucky = noisy(1)
    lucky[0] /= 2
    found = change(lucky, noisy(3))
    assert found.minima_ratio > 1.5
    assert found.verdict(1.1) == "within noise"


def test_a_slowdown_no_larger_than_that_of_the_machine_is_not_one(tmp_path, old, capsys):
    rounds = {"search": noisy(3, 0.13), "score": noisy(4)}
    assert main([old, saved(tmp_path / "new.json", rounds, reference_s=0.014)]) == 0
    assert set(verdicts(capsys).values()) == {"within noise"}


def test_a_slowdown_beyond_that_of_the_machine_is_found(tmp_path, old):
    rounds = {"search": noisy(3, 0.3), "score": noisy(4)}
    assert main([old, saved(tmp_path / "new.json", rounds, reference_s=0.02)]) == 1


def test_nothing_passes_on_a_machine_that_was_too_busy(tmp_path, old, capsys):
    rounds = {"search": noisy(3), "score": noisy(4)}
    assert main([old, saved(tmp_path / "new.json", rounds, reference_s=0.02)]) == 2
    assert "too busy" in capsys.readouterr().err


def test_a_slowdown_that_another_run_of_the_new_code_lacks_is_noise(tmp_path, old, capsys):
    slow = saved(tmp_path / "slow.json", {"search": noisy(3, 0.13), "score": noisy(4)})
    again = saved(tmp_path / "again.json", {"search": noisy(5), "score": noisy(6)})
    assert main([old, slow]) == 1
    assert main([old, slow, "--again", again]) == 0
    assert main([old, slow, "--again", slow]) == 1


def test_a_difference_no_larger_than_that_between_runs_of_the_baseline_is_noise(tmp_path, old):
    slow = {"search": noisy(3, 0.13), "score": noisy(4)}
    again = saved(tmp_path / "again.json", slow)
    new = saved(tmp_path / "new.json", {"search": noisy(5, 0.13), "score": noisy(6)})
    assert main([old, new]) == 1
    assert main([old, again, new]) == 0


def test_medians_are_those_of_resampled_rounds():
    rounds = np.sort(noisy(7, sigma=0.3, rounds=11))
    rng = np.random.default_rng(8)
    resampled = np.median(rng.choice(rounds, (20_000, len(rounds))), axis=1)
    medians = bootstrap_medians(rounds, rng)
    shares = [np.mean(resampled == one) - np.mean(medians == one) for one in rounds]
    assert np.abs(shares).max() < 0.02


def test_the_interval_covers_the_true_ratio_nearly_always():
    covered = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        found = change(rng.lognormal(0, 0.1, 25), 1.2 * rng.lognormal(0, 0.1, 25))
        covered += found.low <= 1.2 <= found.high
    assert covered >= 290


@pytest.mark.parametrize(
    "other",
    [
        {"cpu": {"brand_raw": "Another", "count": 2}},
        {"cpu": {"brand_raw": "A processor", "count": 4}},
        {"threads": 1},
    ],
)
def test_timings_of_another_machine_are_refused(tmp_path, old, other, capsys):
    new = saved(tmp_path / "new.json", {"search": noisy(3)}, machine=MACHINE | other)
    assert main([old, new]) == 2
    assert "different machines" in capsys.readouterr().err


def test_another_version_of_a_library_is_said(tmp_path, old, capsys):
    machine = MACHINE | {"libraries": {"numpy": "2.4.0"}}
    new = saved(tmp_path / "new.json", {"search": noisy(3), "score": noisy(4)}, machine=machine)
    assert main([old, new]) == 0
    assert "numpy 2.3.0 -> 2.4.0" in capsys.readouterr().out


def test_a_baseline_of_two_commits_is_refused(tmp_path, old, capsys):
    other = saved(tmp_path / "other.json", {"search": noisy(3)}, commit="b" * 40)
    assert main([old, other, old]) == 2
    assert "same code" in capsys.readouterr().err


def test_a_benchmark_that_was_not_measured_again_does_not_pass(tmp_path, old, capsys):
    new = saved(tmp_path / "new.json", {"search": noisy(3)})
    assert main([old, new]) == 2
    assert "score was not measured" in capsys.readouterr().err


def test_a_slowdown_counts_more_than_a_benchmark_that_was_not_measured(tmp_path, old):
    assert main([old, saved(tmp_path / "new.json", {"search": noisy(3, 0.2)})]) == 1


def test_a_new_benchmark_passes(tmp_path, old):
    rounds = {"search": noisy(3), "score": noisy(4), "store": noisy(5)}
    assert main([old, saved(tmp_path / "new.json", rounds)]) == 0


def test_too_few_rounds_are_refused(tmp_path, old, capsys):
    new = saved(tmp_path / "new.json", {"search": noisy(3, rounds=4), "score": noisy(4)})
    assert main([old, new]) == 2
    assert "search has 4 rounds" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{}", '{"benchmarks": [{"stats": {"median": 1}}]}'])
def test_a_file_without_the_rounds_is_refused(tmp_path, old, content, capsys):
    (tmp_path / "new.json").write_text(content)
    assert main([old, str(tmp_path / "new.json")]) == 2
    assert "not a saved run" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(tmp_path, old, capsys):
    assert main([old, str(tmp_path / "none.json")]) == 2
    assert "cannot read" in capsys.readouterr().err


# A clock that only the benchmark moves: real files of pytest-benchmark, the same on any machine.
CLOCK = """
import os
import random

draw, now = random.Random(os.environ["SEED"]), [0.0]

def read():
    now[0] += 1e-7
    return now[0]

def spend(seconds):
    now[0] += seconds * (1 + abs(draw.gauss(0, 0.03)))
"""
BENCHMARK = """
import simulated_clock

def bench_work(benchmark):
    benchmark(simulated_clock.spend, {seconds})
"""


def measured(folder, seconds, seed):
    """Run pytest-benchmark with the micro-benchmarks' own settings in a folder of its own."""
    folder.mkdir()
    for name in ("pytest.ini", "conftest.py"):
        shutil.copy(MICRO / name, folder)
    (folder / "simulated_clock.py").write_text(CLOCK)
    (folder / "bench_work.py").write_text(BENCHMARK.format(seconds=seconds))
    command = [sys.executable, "-m", "pytest", str(folder), "--benchmark-json=saved.json"]
    child = subprocess.run(
        [*command, "--benchmark-timer=simulated_clock.read", "-p", "no:cacheprovider"],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{ROOT}", "SEED": str(seed), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return str(folder / "saved.json")


def test_files_of_pytest_benchmark_are_compared(tmp_path):
    pytest.importorskip("pytest_benchmark", reason="the extra micro")
    once = measured(tmp_path / "once", 0.1, seed=1)
    assert main([once, measured(tmp_path / "again", 0.1, seed=2)]) == 0
    assert main([once, measured(tmp_path / "slower", 0.13, seed=3)]) == 1
