"""DPR's layout for open-domain question answering (Karpukhin et al., EMNLP 2020).

``psgs_w100.tsv`` holds passages of 100 words, ``nq-<split>.qa.csv`` questions with their accepted
answers. Despite their names, both are tab-separated with CSV quoting. ``biencoder-nq-train.json``
holds the questions to train on, with relevant passages and hard negatives.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets_cfg.readers import reader
from datasets_cfg.readers.files import judge_examples, read_examples
from datasets_cfg.readers.reader import (
    NO_JUDGEMENTS,
    Document,
    Judgements,
    Queries,
    Reader,
    TrainingExample,
)

_HEADER = ["id", "text", "title"]
_TRAIN = "train"  # the split with passages instead of answers alone


@dataclass(frozen=True)
class DprReader(Reader):
    """A reader of DPR's layout."""

    corpus_names = ("psgs_w100.tsv",)
    expected = "psgs_w100.tsv and nq-{split}.qa.csv"
    answers_decide = True

    def splits(self) -> Collection[str]:
        names = (path.name.removesuffix(".gz") for path in self.folder.glob("nq-*.qa.csv*"))
        return {name.removeprefix("nq-").removesuffix(".qa.csv") for name in names}

    def defaults(self) -> dict[str, Any]:
        measures = ["Success@5", "Success@100"]
        return {"main_measure": "Success@20", "measures": measures, "depth": 100}

    def corpus_files(self) -> tuple[Path, ...]:
        return (reader.find_file(self.folder, self.corpus_names),)

    def documents(self) -> Iterator[Document]:
        return read_passages(*self.corpus_files())

    def judgement_files(self) -> tuple[Path]:
        """Return the file of the questions with their answers or, to train on, passages."""
        name = f"biencoder-nq-{_TRAIN}.json" if self.split == _TRAIN else f"nq-{self.split}.qa.csv"
        return (reader.find_file(self.folder, [name]),)

    def judgements(self) -> Judgements:
        """Return all questions with their answers or, to train on, with their passages."""
        if self.split == _TRAIN:
            return judge_examples(self.examples())
        return read_questions(*self.judgement_files())

    def examples(self) -> Iterator[TrainingExample]:
        """Yield the questions to train on. The id of a question is its number from 0."""
        if self.split == _TRAIN:
            for number, example in enumerate(read_examples(*self.judgement_files())):
                yield example._replace(id=str(number))


def read_passages(path: Path) -> Iterator[Document]:
    """Yield the passages in ``path``."""
    rows = reader.read_csv(path, "\t", 3)
    number, header = next(rows, (1, []))
    if header != _HEADER:
        raise reader.line_error(path, number, f"the header is {header} instead of {_HEADER}")
    for number, (id_, text, title) in rows:
        yield Document(reader.read_id(path, number, id_), title, text)


def read_questions(path: Path) -> Judgements:
    """Return the questions and answers in ``path``. The id of a question is its row from 0.

    The typographic apostrophe becomes ``'``, as DPR does before encoding.
    """
    texts, answers = [], {}
    for row, (number, (question, literal)) in enumerate(reader.read_csv(path, "\t", 2)):
        texts.append(question.replace("’", "'"))
        answers[str(row)] = _answers(path, number, literal)
    if not texts:
        raise reader.line_error(path, 1, "the file holds no questions")
    return replace(NO_JUDGEMENTS, queries=Queries(tuple(answers), tuple(texts)), answers=answers)


def _answers(path: Path, number: int, literal: str) -> tuple[str, ...]:
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not (isinstance(value, list) and value and all(isinstance(text, str) for text in value)):
        message = f"the answers are not a Python list of strings: {literal[:80]!r}"
        raise reader.line_error(path, number, message)
    return tuple(value)
