import pytest

from datasets_cfg.facts import Archive, Facts
from foundation.errors import BenchError
from foundation.records import decode_toml

MINIMAL = 'name = "mine"\nlayout = "beir"\n'


def facts_of(toml: str) -> Facts:
    return decode_toml((MINIMAL + toml).encode(), Facts, "mine.toml")


def test_a_plain_folder_needs_a_name_and_a_layout_only():
    facts = facts_of("")
    assert (facts.split, facts.main_measure, facts.depth) == ("test", "nDCG@10", 1000)
    assert facts.exclude_self is None
    assert facts.counts.documents is None


@pytest.mark.parametrize(
    ("toml", "named", "hint"),
    [
        ('splitt = "dev"', "splitt", "did you mean split?"),
        ("[counts]\ndocumets = 3", r"documets.*\$\.counts", "did you mean documents"),
        ('[[archives]]\nurl = "https://a/b.zip"\nmd = ""', r"\$\.archives", "did you mean md5?"),
        ('title_track = "titel"', r"titel.*\$\.title_track", "did you mean title"),
        ("xyzzy = 1", "xyzzy", "known fields: archives, citation, counts"),
    ],
)
def test_a_misspelt_key_or_choice_names_the_file_and_what_was_meant(toml, named, hint):
    with pytest.raises(BenchError, match=f"mine.toml: .*{named}") as caught:
        facts_of(toml)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "toml",
    [
        'depth = "1000"',
        "depth = 0",
        "exclude_self = 1",
        'main_measure = "nDCG@0"',
        'main_measure = "ndcg 10"',
        "[counts]\ndocuments = -1",
        '[[archives]]\nurl = "file:///etc/passwd"',
        '[[archives]]\nurl = "https://host/folder/"',
        '[[archives]]\nurl = "https://a/b.zip"\nmd5 = "123"',
        "depth = ",
    ],
)
def test_a_wrong_type_or_value_is_refused(toml):
    with pytest.raises(BenchError, match=r"mine\.toml"):
        facts_of(toml)


def test_an_archive_knows_its_file_name_and_whether_it_is_packed():
    assert Archive("https://host/a/b.tar.gz").packed
    assert not Archive("https://host/a/b.tsv.gz").packed
    assert Archive("https://host/a/b.tsv.gz").file_name == "b.tsv.gz"
