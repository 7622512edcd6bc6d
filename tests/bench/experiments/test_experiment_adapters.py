"""Every row of shipped grids for two cores can be trained, from a shared start."""

import pytest

from bench.experiments.ablate import prepare_experiment
from bench.requests.training import AblateRequest
from bench.runner.workspace import Workspace
from tests.support.collections import write_collection, write_qrels

pytest.importorskip("adapters", exc_type=ImportError)
pytest.importorskip("peft")
WIDTH = 128  # Compacter's default shares it among 32 x 4


def write_samples(folder) -> Workspace:
    """Tiny collections that are called as those of grids for two cores."""
    for name in ("beir/scifact", "beir/nfcorpus", "classic/cranfield", "classic/cisi"):
        write_collection(folder / name)
    for name in ("samples/msmarco", "samples/nq"):
        metadata = f'name = "{name}"\nlayout = "beir"\nmain_measure = "RR@10"\n'
        queries = {"q1": "lift of a wing", "q2": "slabs that conduct heat"}
        write_collection(folder / name, queries=queries, qrels={("q1", "d1"): 1}, metadata=metadata)
        write_qrels(folder / name, {("q2", "d9"): 1}, "train")
    return Workspace(folder / "cache", data_dir=folder)


@pytest.mark.parametrize(
    ("grid", "row", "stages"),
    [
        ("adapters", "objective=RetroMAE", ["base", "pretrain", "finetune", "evaluate"]),
        ("three-domains", "reference", ["base", "pretrain"]),
    ],
)
def test_grids_for_two_cores_go_on_from_what_pretraining_matters_trained(
    tmp_path, grid, row, stages
):
    workspace = write_samples(tmp_path)
    places = {"data_dir": workspace.data_dir, "cache_dir": workspace.cache_dir}
    places["allow_mismatch"] = True  # these collections are tiny
    chains = []
    for name, compared in ((grid, "reference"), ("pretraining-matters", row)):
        plan, _ = prepare_experiment(AblateRequest(f"{name}-two-cores", **places))
        cells = [[*cell.task.chain()] for cell in plan.cells if cell.row == compared]
        chains.append([[(task.stage, task.key) for task in cell][: len(stages)] for cell in cells])
    assert chains[0] == chains[1]
    assert [[stage for stage, _ in chain] for chain in chains[0]] == [stages] * 3
