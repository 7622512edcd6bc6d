"""The proof on a GPU: all of its parts with small sizes on the CPU, and parts that fail."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from bench.evaluation.device_search import DeviceSearch
from tests.benchmarks import gpu_proof
from tests.benchmarks.gpu_proof import MARK, PARTS, SMALL, Proof, do_part, run_part


@pytest.fixture
def own_profile() -> Iterator[None]:
    """Restore Hypothesis' profile: a part of the proof loads another one."""
    profile = settings.get_current_profile_name()
    yield
    settings.load_profile(profile)


@pytest.mark.slow
@pytest.mark.usefixtures("own_profile")
def test_every_part_yields_its_figures_on_the_cpu(tmp_path: Path, capsys) -> None:
    proof, figures = Proof(SMALL, tmp_path), {}
    for name in [name for name in PARTS if name != "tests"]:
        do_part(proof, name)
        lines = capsys.readouterr().out.splitlines()
        shown = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
        assert shown, name
        figures |= dict(shown)
    assert "problem" not in figures
    assert all(value for value in figures.values() if isinstance(value, bool))
    assert set(gpu_proof.GOALS) <= figures.keys()
    assert figures["HNSW8"] == "600: works"
    assert all((gpu_proof.ROOT / name).exists() for name in gpu_proof.TESTS)


@pytest.mark.slow
def test_the_table_the_document_and_the_exit_code_agree(tmp_path: Path, capsys) -> None:
    assert gpu_proof.main(["--out", str(tmp_path), "--dry-run", "--only", "exact"]) == 0
    *table, _, last = capsys.readouterr().out.splitlines()
    assert any(" search from files, s " in line and "| 27 " in line for line in table)
    document = json.loads((tmp_path / "proof.json").read_text())
    assert document == json.loads(last)
    assert document["parts"][0]["state"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["proof.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "limit_s", "state"),
    [
        ("", 600, "done"),
        ("import os; os.abort()", 600, "BROKE: died (SIGABRT)"),
        ("raise SystemExit(3)", 600, "BROKE: exit code 3"),
        ("import time; time.sleep(600)", 5, "BROKE: stopped after 5 s"),
    ],
)
def test_a_part_that_dies_or_hangs_keeps_what_it_has_printed(code, limit_s, state) -> None:
    program = f"""print({MARK!r} + '["seconds", 7]', flush=True); {code}"""
    outcome = run_part("exact", [sys.executable, "-S", "-c", program], limit_s)
    assert (outcome.figures, outcome.state) == ({"seconds": 7}, state)


def test_wrong_hits_fail_the_proof(tmp_path: Path, capsys, monkeypatch) -> None:
    score = DeviceSearch._exact_scores
    monkeypatch.setattr(DeviceSearch, "_exact_scores", lambda *given: -score(*given))
    found = Proof(replace(SMALL, cases=1), tmp_path).equal()
    assert not all(value for name, value in found if name.startswith("depth"))


def test_without_a_gpu_the_proof_prints_what_it_would_run(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_proof.main(["--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}: " in shown for name in PARTS)
    assert not list(tmp_path.iterdir())
