"""The declared collections: figures pinned against what was published."""

from pathlib import Path

import pytest

from datasets_cfg.catalogue import dataset_names, facts_for, suite_for, suite_names
from datasets_cfg.locate import cached_folder

FORUMS = "android english gaming gis mathematica physics programmers stats tex unix webmasters"
PUBLIC = (
    "trec-covid nfcorpus nq hotpotqa fiqa arguana webis-touche2020 quora dbpedia-entity scidocs "
    "fever climate-fever scifact msmarco"
)
LICENSED = "bioasq signal1m trec-news robust04"
EMBEDDED = ("stdlib-code", "stdlib-code/train")
TRACKS = ["dev", "dl19", "dl20"]


def names(prefix: str, words: str) -> set[str]:
    return {f"{prefix}/{word}" for word in words.split()}


def test_the_collections_are_those_of_beir_ms_marco_and_dpr():
    assert set(dataset_names()) == (
        names("beir", f"{PUBLIC} {LICENSED}")
        | names("beir/cqadupstack", f"{FORUMS} wordpress")
        | names("msmarco", " ".join([*TRACKS, "train"]))
        | names("msmarco-title", " ".join([*TRACKS, "train"]))
        | {"dpr/nq", "dpr/nq/train", *EMBEDDED}
    )


@pytest.mark.parametrize("name", dataset_names())
def test_every_collection_states_title_counts_licence_and_citation(name):
    facts = facts_for(name)
    assert facts.title
    assert facts.licence
    assert facts.homepage.startswith("http")
    assert facts.measures
    assert facts.citation or name in EMBEDDED
    assert facts.version or name in EMBEDDED


@pytest.mark.parametrize("name", dataset_names())
def test_a_collection_can_be_downloaded_or_says_how_to_obtain_it(name):
    facts = facts_for(name)
    assert facts.public != bool(facts.instructions)
    assert facts.public == bool(facts.archives) or name in EMBEDDED
    if any(not archive.md5 for archive in facts.archives):
        assert any("no published checksum" in doubt for doubt in facts.unverified)


def test_every_collection_states_its_self_match_rule_and_beir_excludes_the_query():
    for name in dataset_names():
        assert facts_for(name).exclude_self is name.startswith("beir/")


def test_beir_shows_ndcg_and_then_recall():
    for name in dataset_names():
        if name.startswith("beir/"):
            facts = facts_for(name)
            assert (facts.main_measure, facts.measures) == ("nDCG@10", ("R@100",))
            assert facts.split == ("dev" if name == "beir/msmarco" else "test")


@pytest.mark.parametrize("track", ["msmarco", "msmarco-title"])
def test_ms_marco_has_its_official_measures_and_denominators(track):
    dev, dl19, dl20 = (facts_for(f"{track}/{name}") for name in TRACKS)
    assert (dev.main_measure, dev.measures) == ("RR@10", ("R@1000", "R@50"))
    assert dev.counts.queries == 6980
    assert (dl19.counts.queries, dl20.counts.queries) == (43, 54)
    for facts in (dl19, dl20):
        assert facts.main_measure == "nDCG@10"
        assert facts.measures == ("R(rel=2)@1000", "AP(rel=2)", "RR(rel=2)")
    assert {facts.counts.documents for facts in (dev, dl19, dl20)} == {8_841_823}
    assert {facts.title_track for facts in (dev, dl19, dl20)} == {
        "title" if track == "msmarco-title" else "no-title"
    }


def test_dpr_counts_answers_in_the_first_hundred_passages():
    facts = facts_for("dpr/nq")
    assert facts.depth == 100
    assert (facts.main_measure, facts.measures) == ("Success@20", ("Success@5", "Success@100"))
    assert (facts.counts.documents, facts.counts.queries) == (21_015_324, 3610)


def test_every_other_collection_is_retrieved_a_thousand_deep():
    others = [name for name in dataset_names() if not name.startswith("dpr/nq")]
    assert {facts_for(name).depth for name in others} == {1000}


@pytest.mark.parametrize(
    ("training", "evaluated", "queries"),
    [
        ("msmarco/train", "msmarco/dev", 502_939),
        ("msmarco-title/train", "msmarco-title/dev", 502_939),
        ("dpr/nq/train", "dpr/nq", 58_880),
    ],
)
def test_training_and_evaluation_splits_share_files_and_corpus(training, evaluated, queries):
    one, other = facts_for(training), facts_for(evaluated)
    assert (one.split, one.counts.queries) == ("train", queries)
    assert cached_folder(one, Path()) == cached_folder(other, Path())
    same = ("layout", "title_track", "version", "exclude_self", "depth")
    assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
    assert one.counts.documents == other.counts.documents
    assert one.archives[0].url == other.archives[0].url


def test_the_forums_of_cqadupstack_have_their_published_total():
    forums = [facts_for(name) for name in suite_for("beir/cqadupstack").members]
    assert len(forums) == 12
    assert sum(facts.counts.queries or 0 for facts in forums) == 13_145
    assert sum(facts.counts.documents or 0 for facts in forums) == 457_199


def test_the_declared_counts_of_arguana_are_those_of_the_official_archive():
    counts = facts_for("beir/arguana").counts
    assert (counts.documents, counts.queries, counts.judgements) == (8_674, 1_406, 1_406)
    assert counts.dangling_judgements == 5


def test_documents_of_the_licensed_sets_are_counted_as_published_and_not_as_indexed():
    documents = {"bioasq": 14_914_602, "signal1m": 2_866_316}
    documents |= {"trec-news": 594_977, "robust04": 528_155}
    for name, count in documents.items():
        assert facts_for(f"beir/{name}").counts.documents == count


def test_files_of_one_name_in_the_cache_are_one_file():
    by_name = {}
    for name in dataset_names():
        for archive in facts_for(name).archives:
            source = (archive.url, archive.md5, archive.size_bytes)
            assert by_name.setdefault(archive.file_name, source) == source


@pytest.mark.parametrize(
    ("suite", "size"), [("beir", 14), ("beir-13", 13), ("beir-15", 15), ("beir-18", 18)]
)
def test_a_mean_of_beir_is_over_as_many_sets_as_its_title_says(suite, size):
    members = suite_for(suite).members
    assert len(set(members)) == len(members) == size
    assert str(size) in suite_for(suite).title or suite == "beir-15"


def test_the_members_of_suites_exist():
    known = {*dataset_names(), *suite_names()}
    for suite in suite_names():
        assert set(suite_for(suite).members) <= known - {suite}


def test_a_mean_is_shown_only_over_one_main_measure():
    for name in suite_names():
        suite = suite_for(name)
        datasets = [member for member in suite.members if member in dataset_names()]
        assert suite.mean == (len({facts_for(member).main_measure for member in datasets}) == 1)


def test_licensed_collections_count_in_one_mean_only():
    for name in names("beir", LICENSED):
        assert [suite for suite in suite_names() if name in suite_for(suite).members] == ["beir-18"]


def test_training_collections_are_in_no_suite():
    training = [name for name in dataset_names() if facts_for(name).split == "train"]
    assert len(training) == 4
    for name in suite_names():
        assert not {*training} & {*suite_for(name).members}
