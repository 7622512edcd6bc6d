"""Every further objective through the whole training: a plain encoder whose loss has fallen."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_starts as small
from tests.support.small_starts import losses, on_cpu

TEXTS = small.texts()


@pytest.fixture(scope="module")
def corpus(bench_data: Path) -> list[str]:
    lines = (bench_data / "beir" / "nfcorpus" / "corpus.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines[:600]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [("bert", "condenser"), ("bert", "cotmae"), ("bert", "dupmae"), ("roberta", "cocondenser")],
)
def test_the_loss_of_a_new_encoder_falls_on_a_real_corpus(
    corpus: list[str], tmp_path: Path, kind: str, name: str
) -> None:
    start = small.write_start(tmp_path / kind, corpus, kind, vocabulary=600)
    objective = {"name": name} | ({"sub_batch": 8} if name == "cocondenser" else {})
    settings = {"objective": objective, "steps": 30, "optimizer": {"lr": 0.006}}
    preset = small.preset(start, batch_size=16, max_tokens=24, **settings)
    pretrain(preset, corpus, on_cpu(tmp_path / "out"))

    curve = losses(tmp_path / "out")
    assert np.mean(curve[-8:]) < 0.92 * np.mean(curve[:3])
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == (
        load_file(start / "model.safetensors").keys()
    )
    encoder = open_encoder(resolve_model(str(tmp_path / "out")), "cpu")
    assert encoder.encode_queries(["a river"]).shape == (1, 32)


def test_settings_that_do_not_fit_the_encoder_claim_no_folder(tmp_path: Path) -> None:
    start = small.write_start(tmp_path / "bert", TEXTS)
    preset = small.preset(start, objective={"name": "condenser", "skip_from": 2})
    with pytest.raises(BenchError, match="the encoder has 2 layers"):
        pretrain(preset, TEXTS, on_cpu(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
