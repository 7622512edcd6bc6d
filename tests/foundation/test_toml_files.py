"""Named TOML files: which file a name stands for, and what is said of a name that is none."""

import msgspec
import pytest

from foundation.errors import BenchError
from foundation.records import Record, TomlFiles


class Inner(Record, kw_only=True):
    name: str = "a"
    lr: float = 0.1


class Outer(Record, kw_only=True):
    title: str
    inner: Inner = Inner()
    rounds: tuple[Inner, ...] = ()
    steps: int | None = None
    epochs: int | None = None


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "shipped"
    folder.mkdir()
    for name in ("fast", "slow"):
        (folder / f"{name}.toml").write_text(f'title = "{name}"\nsteps = 1\n')
    instead_of = {"steps": ("epochs",), "epochs": ("steps",)}
    return TomlFiles("recipe", folder, Outer, choice="inner.name", instead_of=instead_of)


def test_a_name_finds_a_shipped_file_and_a_path_a_user_file(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert files.names() == ("fast", "slow")
    assert files.load("fast") == files.load("fast.toml") == Outer(title="fast", steps=1)
    (tmp_path / "fast.toml").write_text('title = "mine"')
    (tmp_path / "fast").write_text('title = "not asked for"')
    (tmp_path / "no-suffix").write_text('title = "also mine"')
    assert files.load("fast").title == "fast"
    assert files.load("fast.toml").title == files.load(tmp_path / "fast.toml").title == "mine"
    assert files.load("no-suffix").title == "also mine"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("fats", "there is no recipe or file 'fats'", "did you mean fast?"),
        ("xyz", "there is no recipe or file 'xyz'", "use one of fast, slow, or a .toml file"),
        ("slwo.toml", "there is no recipe or file 'slwo.toml'", "did you mean slow?"),
        ("a/fast", "there is no recipe or file 'a/fast'", "did you mean fast?"),
        (".", "there is no recipe or file '.'", "use one of fast"),
    ],
)
def test_an_unknown_name_suggests_what_was_meant(files, name, message, hint):
    with pytest.raises(BenchError, match=message) as caught:
        files.load(name)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "content",
    [b"= 3", b"\xff", b"title = 3", b"title = 'a'\nrounds = [[[]]]", b"x = " + b"[" * 9999],
)
def test_a_malformed_record_is_refused_with_its_source(files, content):
    with pytest.raises(BenchError, match=r"mine\.toml"):
        files.parse(content, "mine.toml")


def test_fields_are_changed_by_dotted_names(files):
    record = Outer(title="t", rounds=(Inner(), Inner(lr=0.5)), steps=3)
    changes = {"rounds.1.lr": 0.7, "inner.lr": 0.2, "inner.name": "b", "epochs": 2}
    changed = files.changed(record, changes, "typed")
    assert msgspec.to_builtins(changed)["rounds"][1] == {"name": "a", "lr": 0.7}
    assert (changed.inner, changed.steps, changed.epochs) == (Inner(name="b", lr=0.2), None, 2)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("iner.lr", "typed: a recipe has no iner.lr", "did you mean inner?"),
        ("rounds.3.lr", "typed: a recipe has no rounds.3.lr", ""),
        ("rounds.0", "typed: rounds.0 is a table", "set one of its fields"),
        ("steps.lr", "typed: a recipe has no steps.lr", "set all of it"),
        ("titel", "unknown field 'titel'", "did you mean title?"),
    ],
)
def test_changing_an_unknown_field_is_refused(files, name, message, hint):
    with pytest.raises(BenchError, match=message) as caught:
        files.changed(Outer(title="t", rounds=(Inner(),)), {name: 1}, "typed")
    assert hint in caught.value.hint
