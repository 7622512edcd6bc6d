"""The generator: what it fills in, and which checkpoints are one."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from foundation.errors import BenchError
from retrievers.training.objectives.generator import check_generator, load_generator
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_starts as small
from tests.support import tiny_encoders as tiny
from tests.support.small_starts import on_cpu
from tests.support.tiny_generators import write_generator

IDS = torch.tensor([[2, 4, 7, 4, 3, 0], [2, 9, 4, 4, 11, 3]])  # 4 is the mask, 0 the padding
MASKED = torch.tensor([[0, 1, 1, 0, 0, 0], [0, 0, 1, 0, 1, 0]]).bool()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("generator")
    return write_generator(root / "model", tiny.tokenizer(root), dropout=0.5)


def test_its_likeliest_token_takes_the_place_of_each_masked_one(folder: Path) -> None:
    filled = load_generator(str(folder)).filled(IDS, IDS != 0, MASKED, dropout=False)
    model = transformers.DistilBertForMaskedLM.from_pretrained(str(folder)).eval()
    for text, (row, real) in enumerate(zip(IDS, IDS != 0, strict=True)):
        logits = model(input_ids=row[real][None]).logits[0]
        for place, token in enumerate(row[real].tolist()):
            expected = int(logits[place].argmax()) if MASKED[text, place] else token
            assert filled[text, place] == expected


def test_dropout_is_on_where_it_is_asked_for(folder: Path) -> None:
    generator = load_generator(str(folder))
    everywhere = torch.ones_like(IDS).bool()
    draws = [generator.filled(IDS, IDS != 0, everywhere, dropout=True) for _ in range(5)]
    assert any((draw != draws[0]).any() for draw in draws)
    still = [generator.filled(IDS, IDS != 0, everywhere, dropout=False) for _ in range(5)]
    assert all((one == still[0]).all() for one in still)


def test_the_head_that_this_suite_keeps_apart_is_found(tmp_path: Path) -> None:
    start = small.write_start(tmp_path / "bert", small.texts())
    preset = small.preset(start, objective={"name": "mlm"}, steps=2)
    pretrain(preset, small.texts(), on_cpu(tmp_path / "out"))
    held = load_file(tmp_path / "out" / "heads" / "model.safetensors")
    head = load_generator(str(tmp_path / "out")).model.cls.predictions
    for name in ("transform.dense.weight", "transform.LayerNorm.weight", "bias"):
        assert torch.equal(head.get_parameter(name), held[f"encoder.model.cls.predictions.{name}"])
    assert torch.equal(head.decoder.bias, head.bias)


def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path) -> None:
    start = small.write_start(tmp_path / "bert", small.texts())
    with pytest.raises(BenchError, match=r"lacks \d weights: cls\.") as error:
        load_generator(str(start))
    assert "the preset mlm" in error.value.hint


def test_what_is_no_masked_language_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    config = json.loads((other / "config.json").read_text()) | {"model_type": "clip"}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(BenchError, match="cannot be loaded") as error:
        load_generator(str(other))
    assert "distilbert/distilbert-base-uncased" in error.value.hint
    with pytest.raises(BenchError, match="no card and no folder 'nowhere'"):
        load_generator("nowhere")


def test_another_vocabulary_and_too_few_positions_are_refused(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer(tmp_path)
    folder = write_generator(tmp_path / "model", tokenizer, positions=12)
    check_generator(str(folder), tokenizer, 12)
    with pytest.raises(BenchError, match=r"max_tokens is 13.*positions for 12"):
        check_generator(str(folder), tokenizer, 13)
    tokenizer.add_tokens(["novel"])
    with pytest.raises(BenchError, match="another vocabulary"):
        check_generator(str(folder), tokenizer, 12)
