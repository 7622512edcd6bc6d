"""``compose`` as it is typed: from trained adapters to one that ``run --model`` takes."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from bench.requests.outcomes import ExitCode
from bench.result_store.find import find_results
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.training.finetune.finetune import finetune
from tests.support.collections import QUERIES, write_collection, write_qrels
from tests.support.small_finetuning import examples, model, preset
from tests.support.small_starts import on_cpu

pytest.importorskip("adapters", exc_type=ImportError)

ADAPTER = """
[adapter]
method = "seq_bn"
lr = 3e-2
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two adapters of one base, and one of a whole model."""
    folder = tmp_path_factory.mktemp("adapters")
    base = model(folder)
    for seed, name in enumerate(("one", "two")):
        settings = preset(f"seed = {seed}\n{ADAPTER}", steps=2)
        finetune(settings, base, examples(), on_cpu(folder / name))
    return folder


def weights(folder):
    return load_file(str(folder / "adapter" / "adapter.safetensors"))


@pytest.mark.slow
def test_an_average_is_evaluated_as_any_model(bench, trained, tmp_path):
    one, two, out = trained / "one", trained / "two", tmp_path / "mean"
    done = bench("compose", "average", one, two, "--out", out)
    assert done.code == ExitCode.OK, done.stderr
    assert done.stdout.startswith(f"{out}: average of {one}, {two}; ")
    assert "evaluate it" not in done.stdout  # the card names no collection to evaluate on
    first, second = weights(one), weights(two)
    for name, value in weights(out).items():
        np.testing.assert_allclose(value, (first[name] + second[name]) / 2, atol=1e-7)

    collection = write_collection(tmp_path / "wings")
    places = ("--cache-dir", bench.cache, "--results", bench.out, "--allow-mismatch")
    run = bench("run", collection, "--model", one, out, *places)
    assert run.code == ExitCode.OK, run.stderr
    assert "mean" in run.stdout


def per_query(out, collection, name):
    (stored,) = [one for one in find_results(out / collection) if one.record.model == name]
    ids, values = stored.scores.query_ids, stored.scores.values
    return stored.record, dict(zip(ids, values[stored.record.main_measure], strict=True))


@pytest.mark.slow
def test_a_routed_query_is_scored_as_by_its_own_adapter(bench, trained, tmp_path):
    names = ("wings", "heat")
    for name, query in zip(names, ("q1", "q2"), strict=True):
        write_collection(tmp_path / name)
        write_qrels(tmp_path / name, {(query, "d9"): 1, ("q3", "d1"): 1}, "train")
    folders = [trained / "one", trained / "two"]
    on = ["--on", *(tmp_path / name for name in names), "--cache-dir", bench.cache]
    done = bench("compose", "route", *folders, *on, "--out", tmp_path / "route")
    assert done.code == ExitCode.OK, done.stderr
    models = [*folders, tmp_path / "route"]
    collections = [tmp_path / name for name in names]
    assert f"bench run {collections[0]} {collections[1]} --model" in done.stdout
    places = ("--cache-dir", bench.cache, "--results", bench.out)
    done = bench("run", *collections, "--model", *models, *places)
    assert done.code == ExitCode.OK, done.stderr
    chosen = open_encoder(resolve_model(str(tmp_path / "route")), "cpu").route
    for name in names:
        parts = [per_query(bench.out, name, one)[1] for one in ("one", "two")]
        result, routed = per_query(bench.out, name, "route")
        assert result.recipe.dim == 2 * 32
        for query, score in routed.items():
            (number,) = chosen([QUERIES[query]])
            assert score == parts[number][query]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["route", "one", "two"], "0 collections for 2"),
        (["route", "one", "two", "--on", "stdlib-code/train"], "1 collections for 2"),
        (["average", "one", "two", "--on", "x"], "--on has no effect"),
        (["average", "one"], "a single adapter cannot be composed"),
        (["average", "one", "three"], "there is no adapter folder"),
        (["average", "start", "one"], "has no adapter"),
        (["averag", "one", "two"], 'Invalid value "averag"'),
    ],
)
def test_bad_input_gives_one_message(bench, trained, tmp_path, arguments, message):
    names = ("one", "two", "three", "start")
    typed = [str(trained / one) if one in names else one for one in arguments]
    before = weights(trained / "two")
    for out, problem in ((tmp_path / "out", message), (trained / "two", "contains other files")):
        done = bench("compose", *typed, "--out", out)
        assert done.code == ExitCode.BAD_INPUT
        assert message in done.stderr or problem in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert all(np.array_equal(before[name], one) for name, one in weights(trained / "two").items())
