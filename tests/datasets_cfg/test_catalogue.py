from pathlib import Path

import pytest

from datasets_cfg.catalogue import (
    dataset_names,
    expand_names,
    metadata_for,
    suite_for,
    suite_names,
    user_folder,
)
from datasets_cfg.download import cached_folder
from foundation.errors import BenchError


def test_a_suite_expands_to_its_collections_and_nested_suites():
    members = expand_names(["beir"])
    assert len(members) == 13 + 12
    assert [name for name in members if "cqadupstack" in name] == expand_names(["beir/cqadupstack"])


def test_collections_suites_and_folders_mix_and_nothing_occurs_twice(tmp_path):
    names = expand_names(["beir/scifact", str(tmp_path), "beir-13", "beir/scifact"])
    assert names[:2] == ["beir/scifact", str(tmp_path)]
    assert len(names) == 2 + 12
    assert names.count("beir/scifact") == 1


@pytest.mark.parametrize("source", ["data_dir", "BENCH_DATA"])
def test_a_folder_is_found_below_where_collections_lie(tmp_path, monkeypatch, source):
    monkeypatch.delenv("BENCH_DATA", raising=False)
    for name in ("classic/cisi", "beir", "scifact"):
        (tmp_path / name).mkdir(parents=True)
    data_dir = tmp_path if source == "data_dir" else None
    if data_dir is None:
        monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    assert user_folder("classic/cisi", data_dir) == tmp_path / "classic" / "cisi"
    assert user_folder(str(tmp_path / "scifact"), data_dir) == tmp_path / "scifact"
    assert user_folder("beir", data_dir) is None
    assert user_folder("scifact", data_dir) is None
    assert user_folder("no/where", data_dir) is None
    assert expand_names(["classic/cisi"], data_dir) == ["classic/cisi"]
    with pytest.raises(BenchError, match="scifact") as caught:
        expand_names(["scifact"], data_dir)
    assert "beir/scifact" in caught.value.hint


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("./cc", "Did you mean ccc?"),
        ("in/dd", "Did you mean in/ddd?"),
        ("ee", "Did you mean eee?"),
        ("ccc/corpus.jsonl", "Name its folder, ccc."),
    ],
)
def test_a_mistyped_path_suggests_the_closest_folder(tmp_path, monkeypatch, typed, advice):
    for folder in ("ccc", "in/ddd", "data/eee"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ccc" / "corpus.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchError) as caught:
        expand_names([typed], tmp_path / "data")
    assert caught.value.hint == advice


def test_a_suite_of_the_user_is_named_by_its_path(tmp_path):
    path = tmp_path / "product.toml"
    path.write_text('title = ""\nmembers = ["beir/scifact"]')
    assert (suite_for(str(path)).name, suite_for(str(path)).title) == (str(path), str(path))
    path.write_text('name = 5\nmembers = ["beir/scifact"]')
    with pytest.raises(BenchError, match="unknown field 'name'"):
        suite_for(str(path))


LICENSED = [f"beir/{name}" for name in ("bioasq", "signal1m", "trec-news", "robust04")]
EMBEDDED = ("stdlib-code", "stdlib-code/train")
TRACKS = ["dev", "dl19", "dl20"]


@pytest.mark.parametrize("name", dataset_names())
def test_every_collection_states_its_source_and_how_to_obtain_it(name):
    metadata = metadata_for(name)
    assert metadata.name == name
    assert metadata.title
    assert metadata.licence
    assert metadata.homepage.startswith("http")
    assert metadata.measures
    assert metadata.citation or name in EMBEDDED
    assert metadata.version or name in EMBEDDED
    assert metadata.public != bool(metadata.instructions)
    assert metadata.public == bool(metadata.archives or metadata.hub) or name in EMBEDDED
    if any(not archive.md5 for archive in metadata.archives):
        assert any("no published checksum" in doubt for doubt in metadata.unverified)


def test_every_collection_states_its_self_match_rule_and_beir_excludes_the_query():
    for name in dataset_names():
        assert metadata_for(name).exclude_self is name.startswith("beir/")


@pytest.mark.parametrize("track", ["msmarco", "msmarco-title"])
def test_ms_marco_has_its_official_measures_and_denominators(track):
    dev, dl19, dl20 = (metadata_for(f"{track}/{name}") for name in TRACKS)
    assert (dev.main_measure, dev.measures) == ("RR@10", ("R@1000", "R@50"))
    assert dev.counts.queries == 6980
    assert (dl19.counts.queries, dl20.counts.queries) == (43, 54)
    for metadata in (dl19, dl20):
        assert metadata.main_measure == "nDCG@10"
        assert metadata.measures == ("R(rel=2)@1000", "AP(rel=2)", "RR(rel=2)")
    assert {metadata.counts.documents for metadata in (dev, dl19, dl20)} == {8_841_823}
    assert {metadata.title_track for metadata in (dev, dl19, dl20)} == {
        "title" if track == "msmarco-title" else "no-title"
    }


@pytest.mark.parametrize(
    ("training", "evaluated", "queries"),
    [
        ("msmarco/train", "msmarco/dev", 502_939),
        ("msmarco-title/train", "msmarco-title/dev", 502_939),
        ("dpr/nq/train", "dpr/nq", 58_880),
    ],
)
def test_training_and_evaluation_splits_share_files_and_corpus(training, evaluated, queries):
    one, other = metadata_for(training), metadata_for(evaluated)
    assert (one.split, one.counts.queries) == ("train", queries)
    assert cached_folder(one, Path()) == cached_folder(other, Path())
    same = ("layout", "title_track", "version", "exclude_self", "depth")
    assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
    assert one.counts.documents == other.counts.documents
    assert one.archives[0].url == other.archives[0].url


def test_files_of_one_name_in_the_cache_are_one_file():
    by_name = {}
    for name in dataset_names():
        for archive in metadata_for(name).archives:
            source = (archive.url, archive.md5)
            assert by_name.setdefault(archive.file_name, source) == source


@pytest.mark.parametrize(
    ("suite", "size"), [("beir", 14), ("beir-13", 13), ("beir-15", 15), ("beir-18", 18)]
)
def test_a_mean_of_beir_is_over_as_many_sets_as_its_title_says(suite, size):
    members = suite_for(suite).members
    assert len(set(members)) == len(members) == size
    assert str(size) in suite_for(suite).title or suite == "beir-15"


def test_licensed_collections_count_in_one_mean_only():
    for name in LICENSED:
        assert [suite for suite in suite_names() if name in suite_for(suite).members] == ["beir-18"]


def test_the_members_of_suites_exist():
    known = {*dataset_names(), *suite_names()}
    for suite in suite_names():
        assert set(suite_for(suite).members) <= known - {suite}


def test_a_mean_is_shown_only_over_one_main_measure():
    for name in suite_names():
        suite = suite_for(name)
        datasets = [member for member in suite.members if member in dataset_names()]
        assert suite.mean == (len({metadata_for(member).main_measure for member in datasets}) == 1)


def test_training_collections_are_in_no_suite():
    nano = suite_for("nanobeir").members  # whose only split is called train
    training = [n for n in dataset_names() if metadata_for(n).split == "train" and n not in nano]
    assert len(training) == 4
    for name in suite_names():
        assert not {*training} & {*suite_for(name).members}
