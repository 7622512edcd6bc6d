"""What is written beside a checkpoint says all of its card."""

import pytest
import transformers

from foundation.errors import BenchError
from retrievers.models.card import Card, CardPrompts, Prompts
from retrievers.models.resolve import resolve_model
from retrievers.training.engine.run_folder import save_checkpoint
from retrievers.training.pretrain.start import load_heads
from tests.support import small_starts as small

CARD = Card(
    name="any",
    title='all "fields" of Łódź, 𝔘nicode\nand lines',
    checkpoint="elsewhere",
    pooling="mean",
    normalize=True,
    similarity="cos",
    title_join="sep",
    segment_ids=False,
    max_query_tokens=11,
    max_document_tokens=12,
    prompts=CardPrompts(query="q: ", datasets={"beir/quora": Prompts(query="", document="d: ")}),
    trained_on=("beir/nfcorpus", "my/texts"),
    warning="pre-trained only",
)


@pytest.fixture
def saved(tmp_path):
    start = small.write_start(tmp_path / "start", small.texts())
    model = transformers.AutoModel.from_pretrained(start)
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    save_checkpoint(model, tokenizer, tmp_path / "out", CARD)
    return tmp_path / "out"


def test_a_card_is_read_as_it_was_written(saved):
    found = resolve_model(str(saved))
    for field in set(Card.__struct_fields__) - {"name", "checkpoint"}:
        assert getattr(found.card, field) == getattr(CARD, field), field
    assert found.card.name == "out"


def test_a_moved_folder_is_the_same_model_under_its_new_name(saved, tmp_path):
    before = resolve_model(str(saved)).recipe
    moved = saved.rename(tmp_path / "moved")
    after = resolve_model(str(moved)).recipe
    assert after.model == "moved"
    assert after.fingerprint == before.fingerprint


def test_heads_of_another_shape_are_refused(saved):
    import torch
    from safetensors.torch import save_file

    encoder, module = torch.nn.Linear(2, 2), torch.nn.Module()
    module.encoder, module.decoder = encoder, torch.nn.Linear(3, 3)
    (saved / "heads").mkdir()
    save_file({"decoder.weight": torch.zeros(4, 4)}, saved / "heads" / "model.safetensors")
    (saved / "heads" / "objective.json").write_text('{"name": "a"}')
    with pytest.raises(BenchError, match=r"does not fit this model: decoder\.weight"):
        load_heads(module, encoder, saved, {"name": "a"})
