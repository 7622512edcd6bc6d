import ast
import json
import random
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_cfg import stdlib_code
from datasets_cfg.readers import Document, reader_of_layout
from datasets_cfg.stdlib_code import (
    Function,
    SourceSelection,
    code_without_docstrings,
    find_functions,
    first_sentence,
    select_evaluated,
    select_rest,
    source_files,
)


@pytest.fixture(scope="module")
def collection(embedded: Path) -> Path:
    """The collection of the running interpreter."""
    return stdlib_code.generate(embedded)


@pytest.fixture(scope="module")
def training(collection: Path) -> Path:
    """What the collection leaves over."""
    return stdlib_code.generate(collection.parents[1], "train")


def definitions(tmp_path: Path, source: str) -> dict[str, Function]:
    path = tmp_path / "module.py"
    path.write_text(source)
    return {item.id: item for item in find_functions([("json", path)])}


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("Return the sum. It may overflow.", "Return the sum."),
        ("Return the sum of\n    two numbers.\n\n    More.", "Return the sum of two numbers."),
        ("Return the sum\n\nof two.", "Return the sum"),
        ("Read x.y at 3.5 volts, e.g. now. Then stop.", "Read x.y at 3.5 volts, e.g. now."),
        ("Is it open? Yes.", "Is it open?"),
        ("", ""),
    ],
)
def test_the_first_sentence_ends_where_the_sentence_ends(docstring: str, sentence: str) -> None:
    assert first_sentence(docstring) == sentence


def test_code_keeps_the_signature_and_loses_every_docstring() -> None:
    source = '''
def outer(a: int, *, b="text") -> int:
    """Outer words."""
    # a remark
    class Inner:
        """Inner words."""
    def helper():
        """Helper words."""
        return b
    return a
'''
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)

    code = code_without_docstrings(node)

    assert code.startswith("def outer(a: int, *, b='text') -> int:\n")
    assert "words" not in code
    assert "remark" not in code
    assert "return b" in code
    compile(code, "unparsed", "exec")


def test_functions_and_methods_are_named_by_module_and_class(tmp_path: Path) -> None:
    source = '''
if True:
    def guarded(): return 1
class A:
    class B:
        async def method(self):
            """Do something useful here."""
            def inner(): return 2
            return inner
'''
    found = definitions(tmp_path, source)

    assert list(found) == ["json:guarded", "json:A.B.method"]
    assert found["json:A.B.method"].sentence == "Do something useful here."
    assert found["json:guarded"].sentence == ""


@pytest.mark.parametrize("body", ["pass", "...", "'only words'", "raise NotImplementedError"])
def test_functions_that_do_nothing_are_left_out(body: str, tmp_path: Path) -> None:
    assert definitions(tmp_path, f'def f():\n    "words"\n    {body}\n') == {}


def test_tests_demos_and_foreign_files_are_no_source(tmp_path: Path) -> None:
    for name in (
        "json/decoder.py",
        "json/__init__.py",
        "json/tests/test_a.py",
        "test/support.py",
        "idlelib/run.py",
        "turtledemo/clock.py",
        "site-packages/requests.py",
        "sitecustomize_of_mine.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert [module for module, _ in source_files(tmp_path)] == ["json", "json.decoder"]


def distinct(count: int) -> list[Function]:
    return [
        Function(f"m:f{n}", f"def f{n}(): {n}", f"Say the number {n} aloud.") for n in range(count)
    ]


@pytest.mark.parametrize("sentence", ["A.walk(top) -> all files below top.", "Too short."])
def test_sentences_that_give_away_the_name_or_say_little_are_not_asked(sentence: str) -> None:
    item = Function("m:A.walk", "code", sentence)
    assert select_evaluated([item], documents=1, queries=1) == SourceSelection((item,), ())


def test_the_selection_does_not_depend_on_the_order_of_files() -> None:
    found = distinct(50)
    assert select_evaluated(found, 20, 5) == select_evaluated(found[::-1], 20, 5)


WORDS = st.sampled_from(["add", "all", "numbers", "NUMBERS", "numbers!", "of", "a", "list"])
SENTENCES = st.lists(WORDS, max_size=6).map(" ".join)
SOURCES = st.lists(st.tuples(st.integers(0, 12), SENTENCES), max_size=30)


@given(SOURCES, st.integers(0, 12), st.integers(0, 8))
def test_the_rest_shares_no_function_no_code_and_no_words_of_a_query_with_what_is_held_out(
    source: list[tuple[int, str]], documents: int, queries: int
) -> None:
    found = [Function(f"m:f{n}", f"code {code}", words) for n, (code, words) in enumerate(source)]
    held_out = select_evaluated(found, max(documents, queries), queries)

    training = select_rest(found, held_out)

    everything = {item.id for item in select_evaluated(found, len(found), 0).documents}
    assert {item.id for item in training.documents} == everything - ids_of(held_out.documents)
    assert not {item.code for item in training.documents} & {i.code for i in held_out.documents}
    assert words_of(training).isdisjoint(words_of(held_out))
    assert set(training.queries) <= set(training.documents)


def ids_of(found: Iterable[Function]) -> set[str]:
    return {item.id for item in found}


def words_of(selection: SourceSelection) -> set[str]:
    texts = (item.sentence.casefold() for item in selection.queries)
    return {" ".join(text.replace("!", "").split()) for text in texts}


def test_the_version_changes_with_any_text() -> None:
    a, b = distinct(2)
    versions = {
        SourceSelection((a, b), (a,)).version,
        SourceSelection((a, b), (b,)).version,
        SourceSelection((a,), (a,)).version,
        SourceSelection((Function(a.id, "other", a.sentence), b), (a,)).version,
        SourceSelection(
            (Function(a.id, a.code, "other"), b), (Function(a.id, a.code, "o"),)
        ).version,
    }
    assert len(versions) == 5


@pytest.mark.slow
def test_the_running_interpreter_gives_a_complete_collection(collection: Path) -> None:
    reader = reader_of_layout("beir")(collection, stdlib_code.SPLIT)
    documents = list(reader.documents())
    judgements = reader.judgements()

    assert len(documents) == stdlib_code.DOCUMENTS
    assert len(judgements.queries) == len(judgements.qrels) == stdlib_code.QUERIES
    assert {grade for *_, grade in judgements.qrels} == {1}
    assert all(query == f"q:{document}" for query, document, _ in judgements.qrels)
    assert set(judgements.qrels.doc_ids) <= {document.id for document in documents}
    assert Counter(document.text for document in documents).most_common(1)[0][1] == 1
    assert {document.title for document in documents} == {""}


@pytest.mark.slow
def test_no_document_contains_the_query_that_asks_for_it(collection: Path) -> None:
    reader = reader_of_layout("beir")(collection, stdlib_code.SPLIT)
    code_of = {document.id: document.text for document in reader.documents()}
    queries = reader.judgements().queries

    told = [
        id_
        for id_, sentence in zip(queries.ids, queries.texts, strict=True)
        if sentence in code_of[id_.removeprefix("q:")]
    ]
    assert told == []


@pytest.mark.slow
def test_training_data_of_the_running_interpreter_are_not_evaluated(
    collection: Path, training: Path
) -> None:
    test, train = (
        reader_of_layout("beir")(collection, "test"),
        reader_of_layout("beir")(training, "train"),
    )
    test_documents, train_documents = list(test.documents()), list(train.documents())
    test_queries, train_queries = test.judgements().queries, train.judgements().queries

    assert len(train_queries) > 1_000
    assert len(train_documents) > len(test_documents)
    assert not {one.id for one in test_documents} & {one.id for one in train_documents}
    assert not {one.text for one in test_documents} & {one.text for one in train_documents}
    assert not set(test_queries.ids) & set(train_queries.ids)
    assert not {bare(text) for text in test_queries.texts} & set(map(bare, train_queries.texts))


def bare(text: str) -> str:
    """A sentence without anything but letters and digits."""
    return "".join(sign for sign in text.casefold() if sign.isalnum())


@pytest.mark.slow
def test_a_generated_collection_is_not_generated_again(
    collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdlib_code, "find_functions", None)
    assert stdlib_code.generate(collection.parents[1]) == collection


@pytest.mark.slow
def test_another_process_makes_the_same_collection_and_imports_no_module_for_it(
    collection: Path, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from datasets_cfg import stdlib_code\n"
        "before = set(sys.modules); folder = stdlib_code.generate(Path(sys.argv[1]))\n"
        "imported = {'turtle', 'tkinter', 'xmlrpc', 'antigravity'} & (set(sys.modules) - before)\n"
        "print(stdlib_code.version_of(folder), *imported)\n"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[2], text=True
    )
    assert output.split() == [stdlib_code.version_of(collection)]


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels", "version.txt"])
def test_a_damaged_generated_collection_is_generated_again(
    name: str,
    split: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = [item for item in source_files(Path(sysconfig.get_path("stdlib"))) if "json" in item[0]]
    monkeypatch.setattr(stdlib_code, "source_files", lambda _: few)
    monkeypatch.setattr(stdlib_code, "DOCUMENTS", 5)
    monkeypatch.setattr(stdlib_code.select_evaluated, "__defaults__", (5, 2))
    folder = stdlib_code.generate(tmp_path, split)
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    path = folder / "qrels" / f"{split}.tsv" if name == "qrels" else folder / name
    draw = random.Random(split)
    for _ in range(4):
        content = bytearray(whole[path])
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        assert stdlib_code.generate(tmp_path, split) == folder
        found = reader_of_layout("beir")(folder, split)
        assert list(found.documents()) == documents_of(whole, folder)
        assert (folder / "queries.jsonl").read_bytes() == whole[folder / "queries.jsonl"]
        assert (folder / "qrels" / f"{split}.tsv").read_bytes() == whole[
            folder / "qrels" / f"{split}.tsv"
        ]
        path.write_bytes(whole[path])
    assert "is damaged: making it again" in caplog.text


def documents_of(files: dict[Path, bytes], folder: Path) -> list[Document]:
    lines = [json.loads(line) for line in files[folder / "corpus.jsonl"].splitlines()]
    return [Document(line["_id"], line["title"], line["text"]) for line in lines]
