"""The declared collections: figures pinned against what was published."""

import pytest

from datasets_cfg.catalogue import dataset_names, facts_for, suite_for, suite_names

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


def test_the_members_of_suites_exist():
    known = {*dataset_names(), *suite_names()}
    for suite in suite_names():
        assert set(suite_for(suite).members) <= known - {suite}


def test_a_mean_is_shown_only_over_one_main_measure():
    for name in suite_names():
        suite = suite_for(name)
        datasets = [member for member in suite.members if member in dataset_names()]
        assert suite.mean == (len({facts_for(member).main_measure for member in datasets}) == 1)


def test_training_collections_are_in_no_suite():
    training = [name for name in dataset_names() if facts_for(name).split == "train"]
    assert len(training) == 4
    for name in suite_names():
        assert not {*training} & {*suite_for(name).members}
