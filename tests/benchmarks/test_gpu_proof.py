"""The proof on a GPU, with tiny sizes on the CPU, and where there is no GPU."""

import json
from pathlib import Path

import pytest

from bench.evaluation.device_search import DeviceSearch
from retrievers.training.engine.context import LossPoint, append_point
from tests.benchmarks import gpu_proof

TINY = (
    *("--device", "cpu", "--layers", "2", "--width", "32", "--heads", "2", "--vocabulary", "2000"),
    *("--tokens", "32", "--batch", "16", "--steps", "20", "--lr", "0.01"),
    *("--rows", "3000", "--dim", "16", "--queries", "20", "--depth", "50"),
)


def test_without_a_gpu_the_proof_prints_what_it_would_run(tmp_path: Path, capsys) -> None:
    assert gpu_proof.main(["--out", str(tmp_path), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}:" in shown for name in gpu_proof.PARTS)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_proof_passes_on_the_cpu_and_prints_its_record(tmp_path, capsys) -> None:
    parts = ("pretrain", "vectors", "search")
    assert gpu_proof.main(["--out", str(tmp_path), *TINY, "--only", *parts]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == json.loads((tmp_path / "proof.json").read_text())
    assert [part["state"] for part in last["parts"]] == ["passed"] * 3


@pytest.mark.slow
def test_differing_hits_and_failing_parts_fail_the_proof(tmp_path, capsys, monkeypatch) -> None:
    score = DeviceSearch._exact_scores
    monkeypatch.setattr(DeviceSearch, "_exact_scores", lambda *given: -score(*given))
    out = ["--out", str(tmp_path), *TINY, "--only"]
    assert gpu_proof.main([*out, "search"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert gpu_proof.main([*out, "vectors"]) == 1  # there is no model yet
    assert "BROKE" in capsys.readouterr().out


def test_a_loss_that_stays_fails(tmp_path) -> None:
    for falling in (0.5, 0.0):
        path = tmp_path / str(falling)
        path.mkdir()
        for step in range(6):
            losses = {"loss": 3 - falling * step / 5}
            append_point(path / "losses.jsonl", LossPoint(step + 1, losses, 1.0, 1.0, 1))
        part = gpu_proof.Part("pretrain")
        gpu_proof.loss_figures(part, path)
        assert (part.state == "passed") == (falling > 0)
