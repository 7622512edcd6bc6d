"""Every further objective through the whole training: a plain encoder whose loss has fallen."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_starts as small
from tests.support.small_starts import losses, on_cpu

# Several sentences each: coCondenser and CoT-MAE read two spans of a text.
TEXTS = [" ".join(small.texts(60)[n : n + 3]) for n in range(58)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [("bert", "condenser"), ("bert", "cotmae"), ("bert", "dupmae"), ("roberta", "cocondenser")],
)
def test_the_loss_of_a_new_encoder_falls(tmp_path: Path, kind: str, name: str) -> None:
    start = small.write_start(tmp_path / kind, TEXTS, kind)
    objective = {"name": name} | ({"sub_batch": 4} if name == "cocondenser" else {})
    settings = {"objective": objective, "steps": 20, "optimizer": {"lr": 0.006}}
    preset = small.preset(start, batch_size=8, **settings)
    pretrain(preset, TEXTS, on_cpu(tmp_path / "out"))

    curve = losses(tmp_path / "out")
    print(name, np.mean(curve[-5:]) / np.mean(curve[:3]))
    assert np.mean(curve[-5:]) < 0.85 * np.mean(curve[:3])
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == (
        load_file(start / "model.safetensors").keys()
    )
    encoder = open_encoder(resolve_model(str(tmp_path / "out")), "cpu")
    assert encoder.encode_queries(["a river"]).shape == (1, 32)
