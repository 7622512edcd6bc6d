"""The study of the ledger counts what it should, with a small network on short texts."""

import pytest
import torch
from transformers import BertModel

from tests.benchmarks.ledger_faults import describe, write_shallow
from tests.support.search_faults import find_faults, make_world
from tests.support.tiny_checkpoints import write_bert


def test_a_shallow_checkpoint_has_all_layers_but_the_last(tmp_path):
    deep = write_bert(tmp_path / "deep", num_hidden_layers=2).eval()
    shallow = BertModel.from_pretrained(write_shallow(tmp_path / "deep", tmp_path / "shallow"))
    tokens = torch.tensor([[2, 5, 6, 3]])
    states = deep(tokens, output_hidden_states=True).hidden_states
    assert torch.equal(shallow.eval()(tokens).last_hidden_state, states[-2])


@pytest.mark.slow
def test_faults_are_counted_by_the_largest_terms(tmp_path):
    pytest.importorskip("apsw", reason="needs apsw: pip install -e '.[test]'")
    world = make_world(tmp_path)
    one = find_faults(world, None, ["queries cut"])
    assert one.named == 1
    assert describe(one).startswith("queries cut: 1 named\n    ")
    assert find_faults(world, None, ["missing", "queries cut"]).named == 2
    assert find_faults(world, None).ledger.exit_code == 0
