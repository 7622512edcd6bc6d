"""Every row of the shipped ablation of adapters is one that can be trained, from a shared start."""

import msgspec
import pytest
import torch
from transformers import AutoModel

from bench.experiments.ablate import prepare_experiment
from bench.experiments.evaluate_stage import EvaluateSettings
from bench.experiments.grid import load_grid, make_rows
from bench.experiments.training_stages import FinetuneStage
from bench.requests.training import AblateRequest
from bench.runner.workspace import Workspace
from retrievers.adapters.adapter import add_adapter
from retrievers.models.resolve import resolve_model
from retrievers.training.preset import FINETUNE_PRESETS, Finetuning
from tests.support.collections import write_collection, write_qrels
from tests.support.tiny_checkpoints import write_bert, write_card

pytest.importorskip("adapters", exc_type=ImportError)
pytest.importorskip("peft")
WIDTH = 128  # Compacter's default shares it among 32 x 4


def write_samples(folder) -> Workspace:
    """Tiny collections that are called as those of the variant two-cores."""
    for name in ("beir/scifact", "beir/nfcorpus", "classic/cranfield", "classic/cisi"):
        write_collection(folder / name)
    for name in ("samples/msmarco", "samples/nq"):
        facts = f'name = "{name}"\nlayout = "beir"\nmain_measure = "RR@10"\n'
        queries = {"q1": "lift of a wing", "q2": "slabs that conduct heat"}
        write_collection(folder / name, queries=queries, qrels={("q1", "d1"): 1}, facts=facts)
        write_qrels(folder / name, {("q2", "d9"): 1}, "train")
    return Workspace(folder / "cache", data_dir=folder)


def presets(variant: str, folder) -> dict[str, Finetuning]:
    """Of each row that has an adapter, as `ablate` reads them."""
    stage = FinetuneStage(write_samples(folder), ())

    def resolve_settings(name, table):
        if name in ("base", "pretrain"):
            return dict(table)
        if name == "finetune":
            return stage.resolve_settings(table)
        return msgspec.to_builtins(msgspec.convert(dict(table), EvaluateSettings))

    rows, _ = make_rows(load_grid("adapters", variant), resolve_settings)
    tuned = [row for row in rows if not row.change.startswith("evaluate.")]
    tables = {row.name: dict(row.settings["finetune"]) for row in tuned}
    for table in tables.values():
        del table["on"], table["split"]
    found = {name: FINETUNE_PRESETS.convert(table, name) for name, table in tables.items()}
    return {name: preset for name, preset in found.items() if preset.adapter}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    write_bert(folder / "bert", hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1)
    write_card(folder / "base.toml", checkpoint="bert", pooling="cls")
    return resolve_model(str(folder / "base.toml"))


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "count"), [("", 13), ("two-cores", 4)])
def test_every_method_moves_its_own_weights_and_none_of_the_base(base, tmp_path, variant, count):
    found = presets(variant, tmp_path)
    assert len(found) == count
    ids = torch.arange(5, 21).reshape(2, 8)
    for name, preset in found.items():
        network = AutoModel.from_pretrained(str(base.document.folder))
        frozen = [(one, one.detach().clone()) for one in network.parameters()]
        add_adapter(network, preset.adapter, base, 0)
        own = [one for one in network.parameters() if one.requires_grad]
        start = [one.detach().clone() for one in own]
        optimizer = torch.optim.AdamW(own, lr=preset.effective_optimizer().lr)
        for _ in range(2):
            states = network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            states[:, 0].square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert any(not torch.equal(a, b) for a, b in zip(start, own, strict=True)), name
        assert all(one.isfinite().all() for one in own), name
        assert all(torch.equal(one, before) for one, before in frozen), name
        assert not any(one.requires_grad for one, _ in frozen), name


def test_two_cores_goes_on_from_what_pretraining_matters_trained(tmp_path):
    workspace = write_samples(tmp_path)
    chains = []
    for grid, row in (("adapters", "reference"), ("pretraining-matters", "objective=RetroMAE")):
        folders = {"data_dir": workspace.data_dir, "cache_dir": workspace.cache_dir}
        plan, _ = prepare_experiment(AblateRequest(grid, variant="two-cores", **folders))
        cells = [cell for cell in plan.cells if cell.row == row]
        chains.append([[(task.stage, task.key) for task in cell.task.chain()] for cell in cells])
    assert chains[0] == chains[1]
    assert len(chains[0]) == 3
    assert [stage for stage, _ in chains[0][0]] == ["base", "pretrain", "finetune", "evaluate"]
