"""Fused rankings, compared with loops over dictionaries that follow the formulas."""

import statistics
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.evaluation.fusion_retriever import fuse
from bench.evaluation.runs import Run
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from retrievers.models.card import Card, Fusion
from retrievers.models.names import anchor_members
from retrievers.models.resolve import resolve_model
from tests.support.collections import write_collection
from tests.support.pipelines import run_of, write_fusion

Rankings = dict[str, dict[str, float]]


def weighted(normalization: str, *weights: float, depth: int = 100) -> Fusion:
    fields = {"method": "weighted", "normalization": normalization, "weights": weights}
    return msgspec.convert({**fields, "depth": depth}, Fusion)


FUSIONS = {
    "rrf": Fusion(),
    "rrf, k = 3": Fusion(k=3),
    "rrf of 4": Fusion(depth=4),
    "min-max": weighted("min-max", 0.7, 0.2, 0.1),
    "min-max of 4": weighted("min-max", 0.7, 0.2, 0.1, depth=4),
    "z-score": weighted("z-score", 0.7, 0.2, 0.1),
    "raw": weighted("raw", 0.7, 0.2, 0.1),
    "weights of 1": Fusion(method="weighted"),
}


def drawn_rankings(seed: int) -> Rankings:
    """Rankings of some of the queries and documents, with ties, of lengths from 1 to 9."""
    rng = np.random.default_rng(seed)
    return {
        f"q{query}": {
            f"d{document}": float(np.float32(rng.integers(-8, 8) / 4))
            for document in rng.choice(12, rng.integers(1, 10), replace=False)
        }
        for query in range(20)
        if rng.random() < 0.9
    }


def as_run(rankings: Rankings) -> Run:
    rows = [(q, d, s) for q, ranking in rankings.items() for d, s in ranking.items()]
    return Run.from_rows(*map(list, zip(*rows, strict=True)))


def normalized(ranking: Mapping[str, float], fusion: Fusion) -> dict[str, float]:
    """Scores of one ranking as they are added, by the formulas of the papers."""
    order = sorted(ranking, key=lambda name: (ranking[name], name.encode()), reverse=True)
    best = {name: ranking[name] for name in order[: fusion.depth]}
    values, k = list(best.values()), 60 if fusion.k is None else fusion.k
    if fusion.method == "rrf":
        return {name: 1 / (k + rank) for rank, name in enumerate(best, start=1)}
    if fusion.normalization == "raw":
        return best
    if len(set(values)) < 2:
        return dict.fromkeys(best, 0.0)
    if fusion.normalization == "z-score":
        mean, deviation = statistics.fmean(values), statistics.pstdev(values)
        return {name: (score - mean) / deviation for name, score in best.items()}
    return {name: (s - min(values)) / (max(values) - min(values)) for name, s in best.items()}


def fused_by_loops(several: list[Rankings], query: str, fusion: Fusion) -> dict[str, float]:
    lists = [normalized(rankings.get(query, {}), fusion) for rankings in several]
    total = dict.fromkeys((name for one in lists for name in one), 0.0)
    for weight, one in zip(fusion.weights or (1,) * len(lists), lists, strict=True):
        lowest = 0.0 if fusion.method == "rrf" or not one else min(one.values())
        for name in total:
            total[name] += weight * one.get(name, lowest)
    return total


@pytest.mark.parametrize("name", FUSIONS)
@pytest.mark.parametrize("seed", range(5))
def test_fused_scores_equal_the_formulas(name, seed):
    several = [drawn_rankings(3 * seed + member) for member in range(3)]
    queries = [f"q{number}" for number in range(19, -1, -1)]
    fused = fuse([as_run(each) for each in several], queries, FUSIONS[name])
    found = {query: dict(zip(ids, scores, strict=True)) for query, ids, scores in fused.rankings()}
    for query in queries:
        expected = fused_by_loops(several, query, FUSIONS[name])
        assert found.get(query, {}).keys() == expected.keys()
        for document, score in expected.items():
            assert found[query][document] == pytest.approx(score, abs=1e-6)


def test_queries_that_are_not_asked_for_are_left_out():
    run = as_run({"q1": {"d1": 1.0}, "q2": {"d2": 1.0}})
    fused = fuse([run, run], ["q2", "q3"], Fusion())
    assert [(query, ids) for query, ids, _ in fused.rankings() if ids] == [("q2", ["d2"])]


def test_scores_beyond_float32_are_refused():
    run = as_run({"q1": {"d1": 3e38}})
    with pytest.raises(BenchError, match="float32"):
        fuse([run, run], ["q1"], weighted("raw", 1.0, 1.0))


@pytest.fixture(name="workspace")
def make_workspace(tmp_path: Path) -> Workspace:
    write_collection(tmp_path / "mine")
    return Workspace(tmp_path / "cache", device="cpu")


@pytest.mark.parametrize(
    ("fields", "fusion"),
    [
        ("depth = 4\n", Fusion(depth=4)),
        ('method = "weighted"\nweights = [0.9, 0.1]\n', weighted("min-max", 0.9, 0.1)),
    ],
)
def test_a_card_fuses_what_its_members_rank(workspace, tmp_path, fields, fusion):
    card = write_fusion(tmp_path / "both.toml", 'models = ["hashing", "bm25"]\n' + fields)
    members = [run_of(workspace, name, tmp_path / "mine", fusion.depth) for name in FOUND]
    queries = workspace.open(str(tmp_path / "mine")).dataset.queries.ids
    expected = list(fuse(members, queries, fusion).rankings())
    for mine, theirs in zip(
        run_of(workspace, card, tmp_path / "mine", 100).rankings(), expected, strict=True
    ):
        assert mine[:2] == theirs[:2]
        assert mine[2].tolist() == theirs[2].tolist()


FOUND = ("hashing", "bm25")


def test_names_with_plus_are_reciprocal_rank_fusion_with_60(workspace, tmp_path):
    typed = workspace.load("hashing+bm25").recipe
    card = write_fusion(tmp_path / "x.toml", 'models = ["hashing", "bm25"]\nk = 60\ndepth = 100\n')
    assert typed.fingerprint == workspace.load(card).recipe.fingerprint
    assert typed.options["k"] == 60


def test_fusions_of_fusions_fuse_and_paths_are_relative_to_the_card(workspace, tmp_path):
    write_fusion(tmp_path / "inner.toml", 'models = ["hashing", "bm25"]\n')
    outer = write_fusion(tmp_path / "outer.toml", 'models = ["inner.toml", "bm25"]\nk = 1\n')
    inner = run_of(workspace, "hashing+bm25", tmp_path / "mine", 100)
    bm25 = run_of(workspace, "bm25", tmp_path / "mine", 100)
    expected = fuse([inner, bm25], inner.query_ids, Fusion(k=1))
    found = run_of(workspace, outer, tmp_path / "mine", 100)
    assert found.doc_ids.to_pylist() == expected.doc_ids.to_pylist()


def test_every_setting_and_every_member_changes_the_fingerprint(workspace, tmp_path):
    hashing = 'name = "words"\ntitle = "t"\nkind = "hashing"\nnormalize = true\noptions.dim = {}\n'
    members, prints = 'models = ["words.toml", "bm25"]\n', []
    for dim, setting in ((32, ""), (64, ""), (64, "k = 61"), (64, "depth = 99")):
        (tmp_path / "words.toml").write_text(hashing.format(dim), encoding="utf-8")
        fusion = write_fusion(tmp_path / "both.toml", f"{members}{setting}\n")
        prints.append(workspace.load(fusion).recipe.fingerprint)
    fusion = write_fusion(tmp_path / "both.toml", f'{members}method = "weighted"\n')
    prints.append(workspace.load(fusion).recipe.fingerprint)
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ('models = ["bm25"]', "needs models: the names of two or more"),
        ('models = ["bm25", "bm25"]', "models names bm25 2 times"),
        ('models = ["bm25", "hashnig"]', "no folder 'hashnig'"),
        ('models = ["bm25", "wrong.toml"]', "wrong.toml is a member of itself"),
        ('models = ["bm25", "hashing"]\nmethod = "isr"', "method is 'isr'"),
        ('models = ["bm25", "hashing"]\nweights = [1.0, 2.0]', 'belong to method = "weighted"'),
        ('models = ["bm25", "hashing"]\nmethod = "weighted"\nk = 3', 'k belongs to method = "rrf"'),
        ('models = ["bm25", "hashing"]\nmethod = "weighted"\nweights = [1.0]', "1 weights for 2"),
        (
            'models = ["bm25", "hashing"]\nmethod = "weighted"\nweights = [nan, 1.0]',
            "weights are 0 or more, finite",
        ),
        ('models = ["bm25", "hashing"]\ndepth = 0', "depth is 0"),
        ('models = ["bm25", "hashing"]\npooling = "cls"', "pooling does not apply to kind"),
        ('models = ["bm25", "hashing"]\n[options]\nk = 3', "has no options"),
    ],
)
def test_a_card_that_cannot_be_fused_is_one_error(tmp_path, fields, problem):
    card = write_fusion(tmp_path / "wrong.toml", fields + "\n")
    with pytest.raises(BenchError, match=problem):
        resolve_model(card)


@pytest.mark.parametrize("name", ["bm25+", "+bm25", "bm25++hashing"])
def test_a_plus_without_a_model_is_named(name):
    with pytest.raises(BenchError, match="a model is missing"):
        resolve_model(name)


def test_a_file_with_a_plus_in_its_name_is_a_file(tmp_path):
    card = write_fusion(tmp_path / "bm25+hashing.toml", 'models = ["bm25", "hashing"]\nk = 7\n')
    assert resolve_model(card).recipe.options["k"] == 7


def test_members_of_a_card_are_relative_to_its_file(tmp_path):
    card = Card(
        name="f",
        title="f",
        kind="fusion",
        models=("one.toml", "code.py:made", "vectors:ready:dot", "vectors:ready", "bm25+one.toml"),
    )
    for name in ("one.toml", "code.py", "ready"):
        (tmp_path / name).touch()
    assert anchor_members(card, tmp_path).models == (
        f"{tmp_path}/one.toml",
        f"{tmp_path}/code.py:made",
        f"vectors:{tmp_path}/ready:dot",
        f"vectors:{tmp_path}/ready",
        f"bm25+{tmp_path}/one.toml",
    )
