"""Replay and joint training: which texts are read, how long, and that kept texts are kept."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.models.resolve import resolve_model
from retrievers.training.continual.methods import Plain, mix_replay
from retrievers.training.continual.sequence import Domain, DomainStep, adapt, read_method
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_starts as small
from tests.support.small_starts import have_equal_weights, on_cpu

TEXTS = small.texts(60)
DOMAINS = tuple(Domain(f"my/{n}", TEXTS[20 * n : 20 * n + 20]) for n in range(3))
JOINT = read_method("joint")
CORPORA = [[f"{name}{row}" for row in range(20)] for name in "abc"]


def preset(start: Path, **changes):
    return small.preset(start, **{"objective": {"name": "retromae"}, "steps": 2, **changes})


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    return small.write_start(tmp_path_factory.mktemp("start") / "bert", TEXTS)


@given(st.integers(1, 99), st.floats(0.05, 0.95), st.integers(0, 5), st.integers(1, 2))
def test_the_share_of_replayed_texts_is_what_was_asked_for(buffer, share, seed, count):
    *earlier, own = CORPORA[: count + 1]
    mixed = list(mix_replay(earlier, own, buffer, share, seed))
    again = Counter(text for text in mixed if text not in own)
    assert Counter(mixed) - again == Counter(own)
    assert abs(again.total() - share / (1 - share) * len(own)) <= 0.5
    assert len(again) <= max(buffer, count)
    assert max(again.values(), default=0) - min(again.values(), default=0) <= 1


def test_the_buffer_holds_as_much_of_each_domain_and_only_shrinks():
    first, second, third = CORPORA
    before = set(mix_replay([first], second, 8, 0.5, 3)) - set(second)
    after = set(mix_replay([first, second], third, 8, 0.5, 3)) - set(third)
    assert len(before) == len(after) == 8
    assert len(after & set(first)) == len(after & set(second)) == 4
    assert after & set(first) <= before
    assert set(mix_replay([first], second, 8, 0.5, 4)) - set(second) != before


def test_joint_reads_all_texts_in_their_order():
    domains = [Domain(name, corpus) for name, corpus in zip("abc", CORPORA, strict=True)]
    texts = JOINT.texts(DomainStep(preset(Path("start")), domains, on_cpu(Path("out"))))
    assert list(texts) == [text for corpus in CORPORA for text in corpus]
    assert texts[38:42] == ["b18", "b19", "c0", "c1"]


@pytest.mark.slow
def test_joint_is_one_training_on_all_for_as_long_as_the_sequence(start, tmp_path):
    trained = adapt(preset(start), DOMAINS, JOINT, on_cpu(tmp_path / "joint"))
    assert [each.steps for each in trained] == [2, 4, 6]
    whole = msgspec.structs.replace(preset(start), steps=6)
    pretrain(whole, TEXTS, on_cpu(tmp_path / "whole"))
    assert have_equal_weights(trained[-1].folder, tmp_path / "whole")
    stated = [resolve_model(each.folder).card.trained_on for each in trained]
    assert stated == [("my/0",), ("my/0", "my/1"), ("my/0", "my/1", "my/2")]


@pytest.mark.slow
def test_replay_goes_on_from_the_domain_before_with_texts_of_it(start, tmp_path):
    settings = read_method({"name": "replay", "buffer": 6, "replayed": 0.25})
    trained = adapt(preset(start), DOMAINS[:2], settings, on_cpu(tmp_path / "replay"))
    plain = adapt(preset(start), DOMAINS[:2], Plain(), on_cpu(tmp_path / "plain"))
    assert have_equal_weights(trained[0].folder, plain[0].folder)
    assert not have_equal_weights(trained[1].folder, plain[1].folder)
    mixed = mix_replay([DOMAINS[0].texts], DOMAINS[1].texts, 6, 0.25, 0)
    after_first = preset(Path(trained[0].folder))
    pretrain(after_first, mixed, on_cpu(tmp_path / "by hand"))
    assert have_equal_weights(trained[1].folder, tmp_path / "by hand")
    assert resolve_model(trained[1].folder).card.trained_on == ("my/0", "my/1")
