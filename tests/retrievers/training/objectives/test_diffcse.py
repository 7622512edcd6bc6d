"""DiffCSE: both losses as loops over numbers, what its gradients reach, and what it replaces."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from foundation.errors import BenchError
from retrievers.encoders.opening import open_encoder
from retrievers.models.loading import load_tokenizer
from retrievers.models.model import resolve_model
from retrievers.training.engine.curve import read_curve
from retrievers.training.engine.find_checkpoint import find_checkpoint
from retrievers.training.engine.save import load_heads, save_heads
from retrievers.training.objectives.diffcse import DiffCSE, DiffCSETraining
from retrievers.training.objectives.objective import read_objective
from retrievers.training.pretrain.pretrain import pretrain
from tests.retrievers.training.objectives.test_contrast import slow_contrast
from tests.support import slow_transformer as slow
from tests.support import small_starts as small
from tests.support import tiny_encoders as tiny
from tests.support.kills import KilledError, killed_at
from tests.support.slow_transformer import Vector
from tests.support.small_starts import on_cpu
from tests.support.tiny_generators import write_generator

Batch = dict[str, Tensor]
SPECIAL = 5  # ids below are special tokens


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("generator")
    return str(write_generator(root / "model", tiny.tokenizer(root)))


@pytest.fixture(scope="module")
def batch(generator: str, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    tokenizer = tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return DiffCSE(generator=generator).collator(tokenizer, 16)(tiny.examples(tiny.TEXTS))


def heads_of(generator: str, architecture: str = "bert", **settings: Any) -> Any:
    return DiffCSE(generator=generator, **settings).build_module(
        tiny.encoder(architecture, dropout=0.1)
    ).double()  # fmt: skip


def slow_batch_norm(layer: Any, vectors: list[Vector]) -> list[Vector]:
    size, columns = len(vectors[0]), []
    scales, shifts = (
        (layer.weight.tolist(), layer.bias.tolist())
        if layer.affine
        else ([1.0] * size, [0.0] * size)
    )
    for column, scale, shift in zip(zip(*vectors, strict=True), scales, shifts, strict=True):
        mean = sum(column) / len(column)
        variance = sum((x - mean) ** 2 for x in column) / len(column)
        columns.append([(x - mean) / (variance + layer.eps) ** 0.5 * scale + shift for x in column])
    return [list(row) for row in zip(*columns, strict=True)]


def slow_projector(layers: Any, vectors: list[Vector]) -> list[Vector]:
    up, first, _, down, second = layers
    wide = [[slow.dot(row, one) for row in up.weight.tolist()] for one in vectors]
    active = [[max(0.0, x) for x in one] for one in slow_batch_norm(first, wide)]
    narrow = [[slow.dot(row, one) for row in down.weight.tolist()] for one in active]
    return slow_batch_norm(second, narrow)


def slow_embeddings(model: Any, ids: list[int]) -> list[Vector]:
    table = model.embeddings
    first = 0 if model.config.model_type == "bert" else model.config.pad_token_id + 1
    kind = table.token_type_embeddings.weight[0].tolist()
    return [
        slow.norm(
            table.LayerNorm,
            slow.add(
                slow.add(table.word_embeddings.weight[token].tolist(), kind),
                table.position_embeddings.weight[first + place].tolist(),
            ),
        )
        for place, token in enumerate(ids)
    ]


def slow_discriminator(discriminator: Any, ids: list[int], vector: Vector) -> list[Vector]:
    """Scores of "not replaced" and "replaced" for each token of a text without padding."""
    states = slow_embeddings(discriminator.encoder, ids)
    states[0] = vector
    for layer in discriminator.encoder.encoder.layer:
        own, out = layer.attention.self, layer.attention.output
        block = SimpleNamespace(
            query=own.query, key=own.key, value=own.value, heads=own.num_attention_heads,
            output=out.dense, attention_norm=out.LayerNorm,
            up=layer.intermediate.dense, down=layer.output.dense, norm=layer.output.LayerNorm,
        )  # fmt: skip
        states = slow.transformer_layer(block, states, [list(range(len(ids)))] * len(ids))
    return [slow.linear(discriminator.head, state) for state in states]


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_the_loss_of_replaced_tokens_is_that_of_loops(
    architecture: str, generator: str, batch: Batch
) -> None:
    heads = heads_of(generator, architecture, detection_weight=0.5).eval()
    with torch.no_grad():
        losses = heads(**batch)
        (states,) = heads.read(batch["input_ids"], batch["attention_mask"])
    vectors = slow_projector(heads.projector, 2 * states.tolist())
    said = heads.generator.model(
        input_ids=batch["shown_ids"], attention_mask=batch["attention_mask"].repeat(2, 1).long()
    ).logits.argmax(-1)
    total, count, replaced = 0.0, 0, 0
    for reading, vector in enumerate(vectors):
        text = reading % len(batch["input_ids"])
        real = int(batch["attention_mask"][text].sum())
        ids = batch["input_ids"][text, :real].tolist()
        edited = [
            int(said[reading, place]) if batch["masked"][reading, place] else token
            for place, token in enumerate(ids)
        ]
        scores = slow_discriminator(heads.discriminator, edited, vector)
        for score, token, other in zip(scores, ids, edited, strict=True):
            total += slow.cross_entropy(score, int(other != token))
        count, replaced = count + real, replaced + sum(map(int.__ne__, ids, edited))
    assert 10 < replaced < count / 2
    assert losses["detection"].item() == pytest.approx(0.5 * total / count, abs=1e-8)
    assert losses["loss"].item() == pytest.approx(
        losses["contrast"].item() + losses["detection"].item(), abs=1e-12
    )


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_the_contrast_is_between_two_readings_after_the_projector(
    architecture: str, generator: str, batch: Batch
) -> None:
    heads = heads_of(generator, architecture, temperature=0.1)
    twice = [batch[name].repeat(2, 1) for name in ("input_ids", "attention_mask")]
    with torch.no_grad():
        torch.manual_seed(3)
        contrast = heads(**batch)["contrast"]
        torch.manual_seed(3)
        (states,) = heads.read(*twice)
    assert (states[:6] != states[6:]).any(dim=1).all()
    vectors = torch.tensor(slow_projector(heads.projector, states.tolist())).double()
    units = vectors / vectors.norm(dim=1, keepdim=True)
    assert contrast.item() == pytest.approx(slow_contrast(units[:6], units[6:], 0.1), abs=1e-6)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_the_discriminator_starts_as_the_encoder_and_shares_nothing(
    architecture: str, generator: str
) -> None:
    heads = heads_of(generator, architecture)
    own = dict(heads.encoder.encoder.named_parameters())
    for name, weight in heads.discriminator.encoder.named_parameters():
        assert torch.equal(weight, own[name])
        assert weight.data_ptr() != own[name].data_ptr()


def test_replaced_tokens_reach_the_encoder_through_cls_alone(generator: str, batch: Batch) -> None:
    heads = heads_of(generator)
    kept: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, states: tuple[Tensor, ...]) -> None:
        states[-1].retain_grad()
        kept.append(states[-1])

    heads.encoder.register_forward_hook(keep)
    heads(**batch)["detection"].backward()
    (states,) = kept
    assert states.grad is not None
    assert (states.grad[:, 0] != 0).any(dim=1).all()
    assert not states.grad[:, 1:].any()


def test_without_the_vector_nothing_of_the_discriminator_reaches_the_encoder(
    generator: str, batch: Batch
) -> None:
    heads = heads_of(generator)
    (vectors,) = heads.read(batch["input_ids"], batch["attention_mask"])
    real, edited = batch["attention_mask"], batch["shown_ids"][:6]
    (losses,) = heads.discriminator.losses(edited, real, batch["masked"][:6], vectors.detach())
    losses.sum().backward()
    assert all(weight.grad is None for weight in heads.encoder.parameters())
    assert heads.discriminator.encoder.embeddings.word_embeddings.weight.grad.any()


def test_the_generator_is_neither_trained_nor_saved(
    generator: str, batch: Batch, tmp_path: Path
) -> None:
    heads = heads_of(generator)
    before = {name: one.clone() for name, one in heads.generator.model.named_parameters()}
    tiny.train(heads, batch, 3, lr=0.01)
    for name, weight in heads.generator.model.named_parameters():
        assert not weight.requires_grad
        assert weight.grad is None
        assert torch.equal(weight, before[name])
    assert not any("generator" in name for name in heads.state_dict())
    save_heads(heads, heads.encoder.encoder, tmp_path, heads.settings)
    held = load_file(tmp_path / "heads" / "model.safetensors")
    assert {name.partition(".")[0] for name in held} == {"encoder", "projector", "discriminator"}

    again = heads_of(generator)
    assert load_heads(again, again.encoder.encoder, tmp_path, heads.settings)
    for part in ("projector", "discriminator"):
        for name, weight in getattr(heads, part).named_parameters():
            assert torch.equal(getattr(again, part).get_parameter(name), weight)


@pytest.mark.parametrize("sub_batch", [1, 5, 12])
def test_sub_batches_have_the_gradient_of_the_whole_batch(
    sub_batch: int, generator: str, batch: Batch
) -> None:
    found = {}
    for size in (None, sub_batch):
        heads = heads_of(generator, sub_batch=size, detection_weight=0.5)
        heads.eval()  # the same readings in batches of any size
        found[size] = tiny.gradients(heads, batch)
    assert found[None].keys() == found[sub_batch].keys()
    for name, expected in found[None].items():
        torch.testing.assert_close(found[sub_batch][name], expected, rtol=1e-7, atol=1e-9)


def test_every_trained_weight_has_a_gradient(generator: str, batch: Batch) -> None:
    """Several processes would wait for one that has none."""
    heads = heads_of(generator)
    trained = {name for name, weight in heads.named_parameters() if weight.requires_grad}
    assert tiny.gradients(heads, batch).keys() == trained


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_tiny_batch_is_learnt_by_heart(architecture: str, generator: str, batch: Batch) -> None:
    encoder = tiny.encoder(architecture, dropout=0.05, initializer_range=0.1)
    settings = DiffCSE(generator=generator, temperature=0.1, detection_weight=1.0)
    heads = settings.build_module(encoder).double()
    first = heads(**batch)
    losses = tiny.train(heads, batch, 60, lr=0.01)
    last = heads(**batch)
    assert sum(losses[-5:]) / 5 < 0.4 * losses[0]
    assert last["contrast"] < 0.4 * first["contrast"]
    assert last["detection"] < 0.4 * first["detection"]


def test_masked_are_ordinary_tokens_alone_at_the_rate_and_anew_in_each_reading(
    tmp_path: Path,
) -> None:
    collate = DiffCSE(generator="random", mask=0.3).collator(tiny.tokenizer(tmp_path), 16)
    batch = collate(tiny.examples(tiny.TEXTS * 100))
    ids, masked = batch["input_ids"].repeat(2, 1), batch["masked"]
    assert not masked[ids < SPECIAL].any()
    assert masked[ids >= SPECIAL].float().mean() == pytest.approx(0.3, abs=0.01)
    first, second = masked.chunk(2)
    assert (first & second).sum() / first.sum() == pytest.approx(0.3, abs=0.02)


def test_random_tokens_are_any_of_the_vocabulary_where_masked(tmp_path: Path) -> None:
    heads = heads_of("random")
    collate = heads.settings.collator(tiny.tokenizer(tmp_path), 16)
    batch = collate(tiny.examples(tiny.TEXTS * 100))
    ids = batch["input_ids"].repeat(2, 1)
    (edited,) = heads.edited(batch["shown_ids"], ids != 0, batch["masked"])
    assert (edited == ids)[~batch["masked"]].all()
    assert set(edited[batch["masked"]].tolist()) == set(range(len(tiny.VOCABULARY)))
    assert (edited != ids)[batch["masked"]].float().mean() > 0.95


def test_a_killed_training_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    texts = small.texts()
    start = small.write_start(tmp_path / "bert", texts)
    tokenizer = load_tokenizer(find_checkpoint(str(start))[0])
    generator = str(write_generator(tmp_path / "generator", tokenizer, dropout=0.3))
    objective = {"name": "diffcse", "generator": generator, "sub_batch": 3}
    preset = small.preset(start, objective=objective, steps=6)
    pretrain(preset, texts, on_cpu(tmp_path / "whole"))

    with pytest.raises(KilledError):
        pretrain(preset, texts, on_cpu(tmp_path / "out", save_every=3, progress=killed_at(5)))
    assert pretrain(preset, texts, on_cpu(tmp_path / "out", save_every=3)).resumed_at == 3
    curves = [read_curve(tmp_path / name / "losses.jsonl") for name in ("whole", "out")]
    assert [one.losses for one in curves[0]] == [one.losses for one in curves[1]]
    assert curves[0][0].losses.keys() == {"loss", "contrast", "detection"}
    encoder = open_encoder(resolve_model(str(tmp_path / "out")), "cpu")
    assert encoder.encode_queries(["a river"]).shape == (1, 32)


def test_gradient_checkpointing_reaches_the_discriminator_and_changes_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, seen = small.texts(), {}
    start = small.write_start(tmp_path / "bert", texts)
    tokenizer = load_tokenizer(find_checkpoint(str(start))[0])
    generator = str(write_generator(tmp_path / "generator", tokenizer, dropout=0.3))
    losses = DiffCSETraining.forward

    def look(self: DiffCSETraining, **batch: Any) -> Any:
        networks = {"encoder": self.encoder.encoder, "discriminator": self.discriminator.encoder}
        seen.update({name: one.is_gradient_checkpointing for name, one in networks.items()})
        return losses(self, **batch)

    monkeypatch.setattr(DiffCSETraining, "forward", look)
    curves = []
    for name, on in (("plain", False), ("less-memory", True)):
        objective = {"name": "diffcse", "generator": generator}
        preset = small.preset(start, objective=objective, steps=3, gradient_checkpointing=on)
        pretrain(preset, texts, on_cpu(tmp_path / name))
        curves.append([one.losses["loss"] for one in read_curve(tmp_path / name / "losses.jsonl")])
        assert seen == {"encoder": on, "discriminator": on}
    assert curves[1] == pytest.approx(curves[0], abs=1e-5)


def test_an_encoder_without_dropout_and_one_with_other_tokens_are_refused(
    generator: str, tmp_path: Path
) -> None:
    with pytest.raises(BenchError, match="DiffCSE needs dropout"):
        DiffCSE(generator=generator).build_module(tiny.encoder())
    tokenizer = tiny.tokenizer(tmp_path)
    tokenizer.add_tokens(["novel"])
    with pytest.raises(BenchError, match="another vocabulary"):
        DiffCSE(generator=generator).collator(tokenizer, 16)


def test_settings_are_read_strictly() -> None:
    table = {"name": "diffcse", "generator": "random", "mask": 0.15}
    assert read_objective(table) == DiffCSE(generator="random", mask=0.15)
    with pytest.raises(BenchError, match="generator"):
        read_objective({"name": "diffcse"})
    with pytest.raises(BenchError) as error:
        read_objective({"name": "diffcse", "generator": "random", "detecton_weight": 1})
    assert error.value.hint == "did you mean detection_weight?"
