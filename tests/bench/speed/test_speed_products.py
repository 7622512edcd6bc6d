"""The share of the peak: products of dense layers alone, against whole encodings."""

import msgspec
import pytest
import transformers

from bench.cli.commands.speed import speed
from bench.cli.options.evaluate import SpeedOptions
from bench.exit_codes import ExitCode
from bench.speed import products
from bench.speed.records import SpeedReport
from retrievers.encoders.tower import dense_layers
from tests.support import tiny_checkpoints as tiny
from tests.support.commands import typed


def test_dense_layers_are_those_that_every_token_goes_through():
    network = transformers.BertModel(tiny.bert_config())
    config = network.config
    width, wide = config.hidden_size, config.intermediate_size
    layer = [(width, width)] * 4 + [(width, wide), (wide, width)]
    assert sorted(dense_layers(network)) == sorted(layer * config.num_hidden_layers)
    assert network.pooler is not None  # has a linear layer too, for one token of a text


def test_the_peak_is_a_sum_over_layers(monkeypatch):
    seconds = {(4, 8): 3.0, (8, 4): 0.5}
    monkeypatch.setattr(products, "_least", lambda shape, dtype, device: seconds[shape])
    assert products.seconds_per_token([(4, 8), (8, 4), (4, 8)], "float32", "cpu") == 6.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_more_numbers_take_longer(dtype):
    small, large = (products.seconds_per_token([(n, n)], dtype, "cpu") for n in (64, 512))
    assert 0 < small < large


@pytest.mark.parametrize(("dtype", "known"), [("float32", True), ("int8", False)])
def test_speed_states_the_share_of_the_peak(tmp_path, capsys, monkeypatch, dtype, known):
    monkeypatch.setattr("bench.speed.measurement.PROBE_S", 0.05)
    tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="bert", pooling="mean")
    words = ("--model", card, "--dtype", dtype, "--parts", "encode", "--repeats", 1)
    options = typed("speed", *words, "--seconds", 0.05, "--cache-dir", tmp_path / "cache")
    assert isinstance(options, SpeedOptions)
    assert speed(options) == ExitCode.OK
    table, last = capsys.readouterr().out.rsplit("\n\n", 1)
    report = msgspec.json.decode(last, type=SpeedReport)
    shares = [row.peak_share for row in report.throughput]
    if not known:  # products in int8 are faster than those of float32
        assert set(shares) == {None}
        return
    assert all(share is not None and 0 < share < 1 for share in shares)
    assert "of the peak" in table
    assert f"{shares[0]:.0%}" in table
