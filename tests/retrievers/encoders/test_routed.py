"""Routed adapters: the rule against scikit-learn, the vectors against each part."""

import numpy as np
import pytest

from foundation.errors import BenchError
from retrievers.adapters.compose import (
    Router,
    find_adapter_base,
    find_adapters,
    normalize_rows,
    route_adapters,
)
from retrievers.encoders.transformer import open_encoder
from retrievers.models.adapter_files import ROUTER, ROUTING
from retrievers.models.resolve import resolve_model
from tests.retrievers.adapters.test_adapter_tuning import run, table
from tests.support.small_finetuning import TEXTS, TITLES, WORDS, model

pytest.importorskip("adapters", exc_type=ImportError)


def clouds(seed=0, sizes=(40, 25, 30), dim=6):
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 1, (len(sizes), dim))
    return [
        (centre + rng.normal(0, 0.6, (size, dim))).astype(np.float32)
        for centre, size in zip(centres, sizes, strict=True)
    ]


def test_the_nearest_mean_is_that_of_scikit_learn():
    neighbors = pytest.importorskip("sklearn.neighbors")
    domains = clouds()
    texts = np.concatenate(clouds(seed=1))
    chosen = Router.fit(domains).choose(texts)
    labels = np.repeat(range(3), [len(domain) for domain in domains])
    known = neighbors.NearestCentroid().fit(normalize_rows(np.concatenate(domains)), labels)
    np.testing.assert_array_equal(chosen, known.predict(normalize_rows(texts)))


DOMAINS = [
    [f"{word} {other} {word}" for word in own for other in own] for own in (WORDS[:3], WORDS[3:])
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two adapters of one base, of AdapterHub and of PEFT where that is there."""
    pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("adapters")
    start = model(folder, pooling="mean", normalize=True, similarity="cos")
    run(folder, f"seed = 1\n{table('seq_bn')}", "one", start=start)
    run(folder, f"seed = 2\n{table('lora', 'peft')}", "two", start=start)
    return folder


def routed(trained, out):
    folders = [trained / "one", trained / "two"]
    base = find_adapter_base(folders)
    encoder = open_encoder(base, "cpu")
    router = Router.fit([encoder.encode_queries(texts[1:]) for texts in DOMAINS])
    route_adapters(find_adapters(base, folders), out, [["a"], ["b/c"]], router)
    return resolve_model(str(out))


@pytest.mark.slow
def test_each_query_is_compared_with_documents_by_the_adapter_of_its_domain(trained, tmp_path):
    whole = open_encoder(routed(trained, tmp_path / "out"), "cpu")
    queries = [texts[0] for texts in DOMAINS] + DOMAINS[1][5:7] + DOMAINS[0][3:4]
    labels = [0, 1, 1, 1, 0]
    assert whole.route(queries).tolist() == labels
    vectors, documents = whole.encode_queries(queries), whole.encode_documents(TITLES, TEXTS)
    assert vectors.dtype == documents.dtype == np.float32
    assert (vectors.shape, documents.shape) == ((5, whole.dim), (len(TEXTS), whole.dim))
    parts = [open_encoder(resolve_model(str(trained / name)), "cpu") for name in ("one", "two")]
    scores = vectors @ documents.T
    for own, text, label in zip(scores, queries, labels, strict=True):
        part = parts[label]
        expected = part.encode_queries([text])[0] @ part.encode_documents(TITLES, TEXTS).T
        np.testing.assert_allclose(own, expected, atol=1e-6)
        other = parts[1 - label]
        wrong = other.encode_queries([text])[0] @ other.encode_documents(TITLES, TEXTS).T
        assert np.abs(own - wrong).max() > 1e-4


def test_the_rule_and_every_adapter_are_part_of_the_fingerprint(trained, tmp_path):
    first = routed(trained, tmp_path / "out").recipe
    assert first.adapter.kind == "routed"
    (tmp_path / "out").rename(tmp_path / "moved")
    card = (tmp_path / "moved" / "card.toml").read_text()
    assert resolve_model(str(tmp_path / "moved")).recipe.fingerprint == first.fingerprint, card
    rule = tmp_path / "moved" / "adapter" / ROUTER
    rule.write_bytes(rule.read_bytes()[:-1] + b"\1")
    changed = resolve_model(str(tmp_path / "moved")).recipe
    parts = [resolve_model(str(trained / name)).recipe for name in ("one", "two")]
    assert len({each.fingerprint for each in (first, changed, *parts)}) == 4


def test_a_damaged_or_missing_part_gives_one_error(trained, tmp_path):
    routed(trained, tmp_path / "out")
    rule = tmp_path / "out" / "adapter" / ROUTER
    rule.write_bytes(b"x")
    encoder = open_encoder(resolve_model(str(tmp_path / "out")), "cpu")
    with pytest.raises(BenchError, match="is damaged"):
        encoder.encode_queries(["a"])
    Router(np.zeros((3, 2)), np.zeros(3)).save(rule)
    with pytest.raises(BenchError, match="is not for 2 adapters"):
        encoder.encode_queries(["a"])
    rule.unlink()
    with pytest.raises(BenchError, match="is missing"):
        resolve_model(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("before", "after", "problem", "hint"),
    [
        ("centroid", "collection", "collection", "--model BASE --adapter"),
        ('"part_1"', '"."', "is routed itself", ""),
    ],
)
def test_selection_by_collection_and_nested_routing_are_refused(
    trained, tmp_path, before, after, problem, hint
):
    routed(trained, tmp_path / "out")
    path = tmp_path / "out" / "adapter" / ROUTING
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(BenchError, match=problem) as caught:
        resolve_model(str(tmp_path / "out"))
    assert hint in caught.value.hint
