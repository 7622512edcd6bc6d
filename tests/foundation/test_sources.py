"""Code of the user: which files belong to a class, and classes loaded from files."""

import hashlib
import sys
from pathlib import Path

import pytest

from foundation.errors import BenchError
from foundation.records import Record
from foundation.sources import hash_sources, load_class

MAIN = """
import json
import numpy as np
from foundation.records import Record
from sources_tools.deep.inner import VALUE

class Mine(Record):
    def later(self):
        import sources_helper
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with its own imports: a namespace package, a package and a late import."""
    deep = tmp_path / "sources_tools" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "sources_helper.py").write_text("import main")
    (deep / "__init__.py").write_text("")
    (deep / "inner.py").write_text("from . import other\nVALUE = 1")
    (deep / "unused.py").write_text("")
    (deep / "other.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


def test_the_sources_are_the_file_and_what_it_imports_from_the_user(folder):
    kind = load_class(str(folder / "main.py"), Record)
    hashes = hash_sources(kind.__module__)
    imported = ("deep", "deep.inner", "deep.other")
    assert {*hashes} == {
        *("main.py", "sources_helper", "main"),
        *(f"sources_tools.{name}" for name in imported),
    }
    assert hashes["main.py"] == hashlib.sha256(MAIN.encode()).hexdigest()


def test_a_module_of_another_folder_with_the_same_name_is_refused(folder):
    load_class(str(folder / "main.py"), Record)
    second = folder / "second"
    second.mkdir()
    (second / "own.py").write_text(MAIN.replace("main", "own"))
    load_class(str(second / "own.py"), Record)
    (second / "sources_helper.py").write_text("")
    (second / "again.py").write_text(MAIN)
    with pytest.raises(BenchError, match=r"imports sources_helper, which is .*, not .*second"):
        load_class(str(second / "again.py"), Record)


def test_a_file_that_was_edited_runs_again_with_another_hash(folder, caplog):
    path = folder / "main.py"
    first = load_class(str(path), Record)
    assert load_class(str(path), Record) is first
    assert caplog.messages == [f"running the code of {path}"]
    before = hash_sources(first.__module__)
    path.write_text(MAIN.replace("Mine", "Other"))
    other = load_class(str(path), Record)
    after = hash_sources(other.__module__)
    assert other.__name__ == "Other"
    assert {name for name in after if after[name] != before[name]} == {"main.py", "main"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "cannot read .*No such file"),
        ("1 / 0", "cannot be run: ZeroDivisionError: division by zero"),
        ("def", "cannot be run: SyntaxError"),
        ("raise SystemExit(0)", "cannot be run: SystemExit: 0"),
        (
            "from foundation.records import Record",
            "must define one subclass of Record; found: none",
        ),
        (MAIN + "\nclass Two(Mine): pass", "found: Mine, Two"),
    ],
)
def test_a_file_without_one_class_is_refused(source, message, folder):
    if source is not None:
        (folder / "wrong.py").write_text(source)
    with pytest.raises(BenchError, match=message):
        load_class(str(folder / "wrong.py"), Record)
