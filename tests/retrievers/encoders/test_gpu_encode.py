"""The measurement of encoding on a GPU, as far as it runs without one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from retrievers.encoders.transformer import TransformerEncoder
from retrievers.models.model import resolve_model
from tests.benchmarks import gpu_encode
from tests.support import tiny_checkpoints as tiny

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_in_one_line_what_it_would_measure() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.gpu_encode"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("no GPU: would measure tokens/s")


def test_made_passages_are_reproducible_and_have_the_stated_lengths() -> None:
    passages = gpu_encode.made_passages(tiny.WORDS, 2_000)
    lengths = [len(passage.split()) for passage in passages]
    assert passages == gpu_encode.made_passages(tiny.WORDS, 2_000)
    assert min(lengths) >= gpu_encode.FEWEST
    assert max(lengths) <= gpu_encode.MOST
    assert abs(np.median(lengths) - gpu_encode.MEDIAN_WORDS) < 3


def test_the_products_of_the_dense_layers_hold_all_their_weights() -> None:
    network = tiny.seeded(lambda: tiny.transformers.BertModel(tiny.bert_config()))
    gemms = gpu_encode.gemms_of(network.config.to_dict(), tokens=7)
    linear = [one for one in network.encoder.modules() if isinstance(one, torch.nn.Linear)]
    flops = sum(gemm.flops * gemm.times for gemm in gemms)
    assert flops == 2 * 7 * sum(one.weight.numel() for one in linear)


def test_every_way_of_encoding_gives_the_same_vectors_without_a_gpu_too(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    base = resolve_model("minilm").document
    assert base is not None
    sizes = {name: value for name, value in tiny.SIZES.items() if name != "initializer_range"}
    gpu_encode.write_random_bert(tmp_path / "bert", base.folder, **sizes)
    model = resolve_model(str(tmp_path / "bert"), like="minilm")
    words = gpu_encode.whole_words(base.folder / "tokenizer.json")
    passages = gpu_encode.made_passages(words, 30)
    setting = gpu_encode.Setting(model, passages, "cpu", "float32", tmp_path)

    report = gpu_encode.measure(setting, workers=1, repeats=1)
    lengths = TransformerEncoder(model, "cpu").count_document_tokens([""] * 30, passages)
    assert report["tokens"] == sum(lengths)
    assert set(report["largest_difference"]) == {"ours", "ours-processes", "forward"}
    assert max(report["largest_difference"].values()) < 1e-5
    assert set(report["tokens_per_s"]) == set(report["seconds"]) == set(report["of_limit"])
    assert "dense layers alone (limit)" in gpu_encode.table_of(report)
