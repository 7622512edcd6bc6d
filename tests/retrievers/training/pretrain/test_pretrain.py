"""Pre-training as a whole: kills, seeds, NaN, and a folder that can be used at once."""

import os
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bench.monitor import model_folder, scan_checkpoints, step_of
from foundation import machine
from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.training.engine import trainer
from retrievers.training.engine.context import Progress
from retrievers.training.objectives.mlm import MLM, MLMTraining
from retrievers.training.preset import PRETRAIN_PRESETS
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_starts as small
from tests.support.small_starts import (
    KilledError,
    have_equal_weights,
    killed_at,
    losses,
    on_cpu,
    weights,
)

ROOT = Path(__file__).parents[4]
TEXTS = small.texts()


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    return small.write_start(tmp_path_factory.mktemp("start") / "bert", TEXTS)


@pytest.fixture(scope="module")
def finished(start, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "small-retromae"
    pretrain(small.preset(start), TEXTS, on_cpu(out), trained_on=("my/texts",))
    return out


def train(preset: Any, out: Path, **options: Any) -> Any:
    return pretrain(preset, TEXTS, on_cpu(out, **options))


def assert_equal_trainings(one: Path, other: Path) -> None:
    assert losses(one) == losses(other)
    assert have_equal_weights(one, other)


@pytest.mark.slow
def test_processes_that_make_the_batches_change_nothing(
    start, finished, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(trainer, "count_loaders", lambda on_cpu: 2)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # as the command line sets it
    train(small.preset(start), tmp_path / "out", save_every=4)
    assert_equal_trainings(tmp_path / "out", finished)
    assert "tokenizers" not in capfd.readouterr().err  # nor do they warn of having been forked


@pytest.mark.slow
def test_checkpoints_of_a_running_training_are_models_that_a_watch_finds(start, tmp_path):
    out, seen = tmp_path / "out", {}

    def scan(progress: Progress) -> None:
        for checkpoint in scan_checkpoints(out):
            model = resolve_model(str(model_folder(checkpoint)))
            seen[step_of(checkpoint.name)] = open_encoder(model, "cpu").encode_queries(TEXTS[:3])

    train(small.preset(start), out, save_every=4, progress=scan)
    assert {4, 8} <= set(seen)
    assert not np.array_equal(seen[4], seen[8])
    encoder = open_encoder(resolve_model(str(out)), "cpu")
    assert not np.array_equal(seen[8], encoder.encode_queries(TEXTS[:3]))


@pytest.mark.slow
def test_the_seed_decides_everything(start, finished, tmp_path):
    train(small.preset(start), tmp_path / "same")
    assert_equal_trainings(tmp_path / "same", finished)
    train(small.preset(start, seed=1), tmp_path / "other")
    assert losses(tmp_path / "other") != losses(finished)


@pytest.fixture
def listens():
    """SIGINT is not ignored, as it is in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listens")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_writes_its_step_and_continues_to_the_same_weights(
    start, finished, tmp_path, number, capfd
):
    def interrupt(progress: Progress) -> None:
        if progress.done == 5:
            os.kill(os.getpid(), number)

    handlers = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as caught:
        train(small.preset(start), tmp_path / "out", progress=interrupt)
    assert number == signal.SIGINT or caught.value.code == 143
    assert "stopping with a checkpoint after this step" in capfd.readouterr().err
    assert signal.getsignal(number) == handlers
    assert not (tmp_path / "out" / "card.toml").exists()
    assert train(small.preset(start), tmp_path / "out").resumed_at == 6
    assert_equal_trainings(tmp_path / "out", finished)


@pytest.mark.usefixtures("listens")
def test_a_second_interruption_stops_at_once(start, tmp_path):
    def interrupt(progress: Progress) -> None:
        if progress.done == 5:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small.preset(start), tmp_path / "out", progress=interrupt)
    assert not list((tmp_path / "out").glob("checkpoints/checkpoint-*/complete"))


def test_checkpoints_are_written_when_their_time_has_come(start, finished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(KilledError):
        train(small.preset(start), out, progress=killed_at(7))
    assert not list(out.glob("checkpoints/*"))  # five minutes are not over
    monkeypatch.setattr(trainer, "SAVE_MINUTES", 0)
    with pytest.raises(KilledError):
        train(small.preset(start), out, progress=killed_at(7))
    assert train(small.preset(start), out).resumed_at == 6
    assert_equal_trainings(out, finished)


def test_a_folder_of_another_training_is_refused(start, finished):
    with pytest.raises(BenchError, match=r"preset\.seed, trained_on changed$"):
        train(small.preset(start, seed=1), finished)
    with pytest.raises(BenchError, match=r"different training: data\.texts, texts"):
        pretrain(small.preset(start), TEXTS[1:], on_cpu(finished), trained_on=("my/texts",))


def test_a_foreign_folder_is_not_touched(start, tmp_path):
    other = tmp_path / "checkpoints" / "checkpoint-best"
    other.mkdir(parents=True)
    (other / "optimizer.pt").write_bytes(b"theirs")
    with pytest.raises(BenchError, match="contains other files"):
        train(small.preset(start), tmp_path)
    assert (other / "optimizer.pt").read_bytes() == b"theirs"


def test_a_folder_without_a_checkpoint_can_be_used_by_any_training(start, tmp_path):
    short_of_memory = msgspec.structs.replace(small.preset(start), objective=Breaks())
    with pytest.raises(BenchError, match="not a finite number"):
        train(short_of_memory, tmp_path, save_every=100)
    train(small.preset(start, batch_size=2, accumulate=2, steps=1), tmp_path)
    assert len(losses(tmp_path)) == 1


def test_the_folder_is_a_model_at_once(finished):
    model = resolve_model(str(finished))
    assert model.card.name == "small-retromae"
    assert (model.recipe.pooling, model.recipe.similarity) == ("cls", "dot")
    assert model.card.trained_on == ("my/texts",)
    assert "pre-trained only" in model.card.warning
    vectors = open_encoder(model, "cpu").encode_queries(TEXTS[:3])
    expected = sentence_transformers_vectors(finished, TEXTS[:3])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def sentence_transformers_vectors(folder: Path, texts: list[str]) -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert model.similarity_fn_name == "dot"
    assert model.max_seq_length == 16
    return model.encode(texts)


@pytest.mark.slow
def test_training_goes_on_with_the_heads_of_a_folder(finished, tmp_path):
    new = PRETRAIN_PRESETS.changed(small.preset(finished, steps=1), {"optimizer.lr": 1e-12}, "test")
    train(new, tmp_path / "retromae")
    held, old = weights(tmp_path / "retromae"), weights(finished)
    assert all(torch.allclose(held[name], old[name], atol=1e-8) for name in old)
    assert losses(tmp_path / "retromae")[0] < losses(finished)[0]
    assert resolve_model(str(tmp_path / "retromae")).card.trained_on == ("my/texts",)


def test_another_objective_takes_the_head_of_masked_language_modelling_only(finished, tmp_path):
    train(
        small.preset(finished, steps=1, objective={"name": "mlm"}, optimizer={"lr": 1e-12}),
        tmp_path,
    )
    held, old = weights(tmp_path), weights(finished)
    assert sum(name.startswith("heads") for name in held) > 0
    assert all(torch.allclose(held[name], old[name], atol=1e-8) for name in held)


@pytest.mark.slow
def test_gradient_checkpointing_changes_memory_and_no_loss(start, finished, tmp_path):
    train(small.preset(start, gradient_checkpointing=True), tmp_path)
    assert losses(tmp_path) == pytest.approx(losses(finished), abs=1e-4)


@pytest.mark.slow
def test_bfloat16_gives_about_the_same_losses(start, finished, tmp_path, monkeypatch, caplog):
    (tmp_path / "cpuinfo").write_text("flags : avx2 avx512f\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    trained = tmp_path / "trained"
    train(small.preset(start, precision="bfloat16"), trained)
    assert "no bfloat16 instructions" in caplog.text
    assert losses(trained) != losses(finished)
    assert losses(trained) == pytest.approx(losses(finished), rel=0.02)
    assert all(one.dtype == torch.float32 for one in weights(trained).values())


class Breaks(MLM, frozen=True, tag="breaks"):
    """Masked language modelling whose loss is no number from the eighth step on."""

    name: ClassVar[str] = "breaks"

    def build_module(self, encoder: Any) -> Any:
        class Training(MLMTraining):
            calls = 0

            def forward(self, **batch: Any) -> Any:
                self.calls += 1
                return {"loss": super().forward(**batch)["loss"] / (self.calls < 8)}

        return Training(encoder)


@pytest.mark.slow
def test_a_nan_loss_stops_training_and_keeps_the_last_good_model(start, tmp_path):
    preset = msgspec.structs.replace(small.preset(start), objective=Breaks())
    with pytest.raises(BenchError, match=r"not a finite number at step 8; .* step 6 ") as e:
        train(preset, tmp_path / "out", save_every=3)
    good = tmp_path / "out" / "checkpoints" / "checkpoint-6" / "model"
    assert str(good) in str(e.value)
    assert "--set optimizer.lr=0.0003" in e.value.hint
    assert not (tmp_path / "out" / "card.toml").exists()
    assert all(bool(one.isfinite().all()) for one in weights(good).values())
    train(small.preset(good, steps=1), tmp_path / "slower")


class Hungry(MLM, frozen=True, tag="hungry"):
    """Masked language modelling that wants more memory than any machine has."""

    name: ClassVar[str] = "hungry"

    def build_module(self, encoder: Any) -> Any:
        class Training(MLMTraining):
            def forward(self, **batch: Any) -> Any:
                return {"loss": torch.empty(10**16)}

        return Training(encoder)


def test_a_lack_of_memory_says_which_batch_size_to_try(start, tmp_path):
    preset = small.preset(start, batch_size=12)
    preset = msgspec.structs.replace(preset, objective=Hungry())
    with pytest.raises(BenchError, match="not enough memory for batches of 12") as e:
        train(preset, tmp_path / "out")
    assert "a smaller batch_size with a larger accumulate" in e.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 80}, "max_tokens 80 exceeds the model's positions, 66"),
        ({"start": {"model": "./nowhere"}}, "there is no model card and no folder './nowhere'"),
        ({"start": {"model": "bm25"}}, "no checkpoint to start from"),
        ({"start": {"model": "seed"}}, "no checkpoint to start from"),
        (
            {"objective": {"name": "condenser", "skip_from": 2}},
            "skip_from is 2, but the encoder has 2 layers",
        ),
    ],
)
def test_an_untrainable_setting_is_refused_first(start, tmp_path, changes, message):
    with pytest.raises(BenchError, match=message):
        train(small.preset(start, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_package_says_what_to_install(start, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)  # as if it were not installed
    with pytest.raises(BenchError, match="accelerate") as caught:
        train(small.preset(start), tmp_path)
    assert caught.value.hint == "Run `pip install 'retrieval-bench[train]'`."


def test_a_checkpoint_that_lacks_weights_of_its_encoder_is_refused(start, tmp_path):
    from safetensors.torch import save_file

    folder = small.write_start(tmp_path / "bert", TEXTS)
    held = load_file(folder / "model.safetensors")
    del held["encoder.layer.1.output.dense.weight"]
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BenchError, match=r"lacks 1 weights of its encoder.*layer\.1\.output"):
        train(small.preset(folder), tmp_path / "out")
