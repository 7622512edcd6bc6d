"""A new objective is one file and no other edit."""

from pathlib import Path

import pytest

from foundation.errors import BenchError
from retrievers.training import objectives
from retrievers.training.objectives.objective import objective_names, read_objective
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_starts as small

FIRST_WORDS = '''
"""The embedding of a text must be short."""

from torch import nn

from retrievers.training.objectives.objective import Settings


class Shrink(Settings, kw_only=True):
    """``weight`` of the loss."""

    weight: float = 1.0

    def batch(self, tokens, vocabulary, rng):
        return {"input_ids": tokens.ids, "attention_mask": tokens.real}

    def build_module(self, encoder):
        return Shrinking(encoder, self.weight)


class Shrinking(nn.Module):
    def __init__(self, encoder, weight):
        super().__init__()
        self.encoder, self.weight = encoder, weight

    def forward(self, input_ids, attention_mask):
        states = self.encoder(input_ids, attention_mask)[-1]
        return {"loss": self.weight * states[:, 0].square().mean()}
'''


def test_an_objective_is_added_with_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "shrink.py").write_text(FIRST_WORDS)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path / "new")])
    assert "shrink" in objective_names()
    start = small.write_start(tmp_path / "bert", small.texts())
    preset = small.preset(start, objective={"name": "shrink", "weight": 0.5}, steps=2)
    trained = pretrain(preset, small.texts(), small.on_cpu(tmp_path / "out"))
    assert (trained.objective, trained.steps) == ("shrink", 2)
    with pytest.raises(BenchError, match="wieght"):
        read_objective({"name": "shrink", "wieght": 1})


@pytest.mark.parametrize("table", [{}, {"name": "mask"}, {"name": "masking"}, {"name": "ict"}, 3])
def test_what_names_no_objective_is_answered_with_those_there_are(table: object) -> None:
    with pytest.raises(BenchError) as caught:
        read_objective(table)
    assert "retromae" in caught.value.hint or "mlm" in caught.value.hint
