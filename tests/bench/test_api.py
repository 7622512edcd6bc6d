"""The Python API: what is stored, as data frames; `import bench` loads nothing."""

import json

import pandas as pd
import pytest

import bench
from foundation.errors import BenchError
from tests.support.collections import modules_after
from tests.support.leaderboards import store

VALUES = {"nDCG@10": [0.5, 0.25], "R@100": [1.0, 0.0]}


def test_importing_the_package_loads_no_heavy_library():
    loaded = modules_after("import bench; bench.__version__; dir(bench)")
    assert {"numpy", "pandas", "pyarrow", "torch", "msgspec", "faiss"} & loaded == set()


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = bench.nothing_of_this_name
    with pytest.raises(AttributeError, match="Did you mean evaluate"):
        _ = bench.evaluat
    assert set(bench.__all__) <= set(dir(bench))


@pytest.mark.parametrize(
    ("function", "wrong", "meant"),
    [
        (bench.evaluate, "dtpe", "dtype"),
        (bench.score, "measre", "measure"),
        (bench.leaderboard, "suit", "suite"),
    ],
)
def test_an_unknown_argument_is_a_type_error_with_the_closest_name(function, wrong, meant):
    with pytest.raises(TypeError, match=f"'{wrong}'. Did you mean {meant}?"):
        function("a", "b", **{wrong: "x"})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bench.evaluate("a", "b", depth="3"), "depth must be int or None, not str: '3'"),
        (lambda: bench.evaluate("a", "b", dtype="int7"), "dtype must be 'float32' or"),
        (lambda: bench.compare("a"), "missing 1 required positional argument: 'b'"),
        (lambda: bench.compare(3, "a"), "not by a int: 3"),
        (lambda: bench.plot(pd.DataFrame()), "draws the result of bench.compare"),
    ],
)
def test_a_value_of_a_wrong_type_is_an_error_that_names_the_right_one(tmp_path, call, message):
    store(tmp_path / "results", "a", "beir/scifact", VALUES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(TypeError, match=message):
            call()


def test_results_have_a_row_for_each_result_and_measure(tmp_path):
    store(tmp_path, "minilm", "beir/scifact", VALUES, judged_at_10=None)
    store(tmp_path, "bm25", "beir/scifact", VALUES, in_domain=True)
    frame = bench.results(tmp_path)
    assert len(frame) == 4
    assert frame["model"].tolist() == ["bm25", "bm25", "minilm", "minilm"]
    first = frame.iloc[0]
    assert (first["collection"], first["measure"], first["value"]) == (
        "beir/scifact",
        "nDCG@10",
        0.375,
    )
    assert (first["is_main"], first["in_domain"], first["official"]) == (True, True, True)
    assert frame["time"].dt.year.unique().tolist() == [2026]
    assert frame["judged_at_10"].isna().sum() == 2
    table = frame.pivot_table(index="model", columns="measure", values="value")
    assert table.loc["minilm", "R@100"] == 0.5
    pd.testing.assert_frame_equal(frame, bench.results(str(tmp_path)))


def test_a_result_has_its_values_of_queries_as_a_frame(tmp_path):
    store(tmp_path, "minilm", "beir/scifact", VALUES, ids=["q7", "q3"])
    result = bench.load_result(bench.results(tmp_path)["folder"][0])
    assert (result.model, result.dataset) == ("minilm", "beir/scifact")
    assert result.measures == {"nDCG@10": 0.375, "R@100": 0.5}
    frame = result.per_query
    assert frame.index.name == "query_id"
    assert frame.index.tolist() == ["q7", "q3"]
    assert frame["nDCG@10"].tolist() == [0.5, 0.25]
    assert frame.mean().to_dict() == result.measures


def test_a_folder_without_results_and_a_record_that_contradicts_itself_are_errors(tmp_path):
    with pytest.raises(BenchError, match="has no results"):
        bench.results(tmp_path)
    folder = store(tmp_path, "minilm", "beir/scifact", VALUES)
    record = json.loads((folder / "result.json").read_bytes())
    record["measures"]["nDCG@10"] = 0.99
    (folder / "result.json").write_text(json.dumps(record))
    for read in (lambda: bench.results(tmp_path), lambda: bench.load_result(folder)):
        with pytest.raises(BenchError, match="contradicts itself"):
            read()
