"""Sparse fine-tuning: which weights are chosen, that no other moves, and going on after a stop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from retrievers.training.engine.size import read_size
from retrievers.training.finetune import rounds
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.sparse import fisher_information, hold_to, largest
from retrievers.training.finetune.trained_part import FisherMask
from tests.support.small_finetuning import examples, model, on_cpu, preset, same_weights, weights

OPTIMIZER = "[optimizer]\nlr = 3e-3\nwarmup = 0.0\nweight_decay = 0.1\n"
FISHER = 'part = { name = "fisher", share = 0.01, batches = 2 }\n'
TICKET = 'part = { name = "lottery-ticket", share = 0.01, steps = 4 }\n'
PARTS = pytest.mark.parametrize("part", [FISHER, TICKET], ids=["fisher", "lottery-ticket"])


def run(folder, part, name="out", steps=5, **others):
    context = on_cpu(folder / name, **others)
    finetune(preset(part + OPTIMIZER, steps=steps), model(folder), examples(), context)
    return folder / name


class Stop(Exception):  # noqa: N818 - it stands for a kill
    """Of a training."""


@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    st.floats(0.01, 0.99),
)
def test_a_mask_marks_the_largest_scores_of_all(rows, share):
    scores = {str(number): torch.tensor(row).float() for number, row in enumerate(rows)}
    mask = largest(scores, share)
    flat = np.concatenate([np.array(row) for row in rows])
    chosen = np.concatenate([mask[name].numpy() for name in scores])
    count = max(1, round(share * len(flat)))
    assert sorted(flat[chosen]) == sorted(flat)[len(flat) - count :]


@PARTS
def test_exactly_the_masked_weights_move_and_are_counted(tmp_path, part):
    out = run(tmp_path, part)
    before, after = weights(tmp_path / "start"), weights(out)
    mask = load_file(out / "mask" / "mask.safetensors")
    total = sum(value.size for value in before.values())
    assert sum(int(own.sum()) for own in mask.values()) == round(0.01 * total)
    for name, start in before.items():
        assert not (start != after[name])[~mask[name]].any()
    assert sum(int((before[name] != after[name]).sum()) for name in before) >= 0.005 * total
    assert read_size(out).trained == round(0.01 * total)
    assert not (out / "ticket").exists()


def test_a_lottery_ticket_is_what_moves_most_in_a_whole_training(tmp_path):
    mask = load_file(run(tmp_path, TICKET) / "mask" / "mask.safetensors")
    before, whole = weights(tmp_path / "start"), weights(run(tmp_path, "", "whole", steps=4))
    distance = {name: np.abs(whole[name] - before[name]) for name in before}
    bar = np.sort(np.concatenate([each.ravel() for each in distance.values()]))[::-1]
    bar = bar[sum(int(own.sum()) for own in mask.values()) - 1]
    assert all((distance[name][own] >= bar).all() for name, own in mask.items())
    assert all((distance[name][~own] <= bar).all() for name, own in mask.items())


def test_fisher_information_is_the_mean_squared_slope_of_the_loss(tmp_path, monkeypatch):
    seen = {}

    def by_differences(trainer, network, batches):
        information = fisher_information(trainer, network, batches)
        network.double()
        loader = [trainer._prepare_inputs(inputs) for inputs in trainer.get_train_dataloader()]
        for name in ("encoder.layer.1.output.dense.weight", "embeddings.LayerNorm.bias"):
            weight = network.get_parameter(name).data.view(-1)
            slopes = []
            for inputs in loader[:batches]:
                losses = []
                for step in (1e-6, -2e-6):
                    weight[3] += step
                    with torch.no_grad():
                        losses.append(float(trainer.compute_loss(trainer.model, inputs)))
                weight[3] += 1e-6
                slopes.append((losses[0] - losses[1]) / 2e-6)
            seen[name] = (float(information[name].view(-1)[3]), np.mean(np.square(slopes)))
        network.float()
        return information

    monkeypatch.setattr(rounds, "fisher_information", by_differences)
    run(tmp_path, FISHER)
    assert len(seen) == 2
    for found, expected in seen.values():
        assert found == pytest.approx(expected, rel=1e-3)


@PARTS
def test_a_training_that_was_stopped_keeps_its_mask_and_ends_as_if_it_had_not_been(tmp_path, part):
    whole = run(tmp_path, part)

    def stop(progress):
        if progress.done == 3 and progress.total == 5:
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path, part, "cut", progress=stop, save_every=2)
    written = (tmp_path / "cut" / "mask" / "mask.safetensors").stat().st_mtime_ns
    assert same_weights(run(tmp_path, part, "cut", save_every=2), whole)
    assert (tmp_path / "cut" / "mask" / "mask.safetensors").stat().st_mtime_ns == written


def test_what_is_frozen_gets_no_gradient():
    layer = torch.nn.Linear(3, 2)
    mask = {"weight": torch.tensor([[True, False, False], [False, False, True]])}
    assert hold_to(layer, mask) == 2
    layer(torch.ones(1, 3)).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert layer.bias.grad is None


def test_nothing_decays_in_a_sparse_training():
    settings = preset(FISHER + OPTIMIZER)
    assert isinstance(settings.part, FisherMask)
    assert (settings.trained_by().weight_decay, settings.trained_by().lr) == (0.0, 3e-3)
