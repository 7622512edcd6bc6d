"""TREC's layout: topics, qrels, and documents in a file of another layout.

``topics*`` holds ``<top>`` or ``<topic>`` elements, whose titles are the queries. ``qrels*`` holds
four columns. ``corpus.jsonl`` or ``collection.tsv`` holds the documents.
"""

import html
import itertools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from datasets_cfg.readers import reader
from datasets_cfg.readers.beir import read_documents
from datasets_cfg.readers.msmarco import read_passages
from datasets_cfg.readers.qrels import read_trec_qrels
from datasets_cfg.readers.reader import Document, Judgements, Queries, Reader
from foundation.errors import BenchError, format_names, report_error

_TOPIC = re.compile(r"<top(?:ic)?(?:\s[^>]*)?>", re.IGNORECASE)
_END = re.compile(r"</top(?:ic)?>", re.IGNORECASE)
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)|<topic[^>]*\snumber=[\"']([^\"']+)", re.I)
# Up to its end tag or, as in old topics, to the next field.
_FIELDS = "num|title|query|desc|description|narr|narrative|smry|summary|con|concepts?|fac|def|dom"
_TITLE = re.compile(
    rf"<(title|query)>\s*(?:Topic:)?\s*(.*?)\s*(?:</\1>|<(?:{_FIELDS})\b[^<>]*>|$)",
    re.DOTALL | re.IGNORECASE,
)
_TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_ENDS = r"(?:txt|xml|tsv|trec|qrels|gz)"
_NAME = re.compile(rf"(?:topics|qrels)(?:[.-](?!{_ENDS}(?:\.|$))(.*?))?(?:\.{_ENDS})*")


@dataclass(frozen=True)
class TrecReader(Reader):
    """A reader of TREC's layout."""

    corpus_names = ("corpus.jsonl", "collection.tsv")
    expected = "corpus.jsonl, topics.{split}.txt and qrels.{split}.txt"

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Return whether ``folder`` has topics and qrels, and no queries of BEIR's layout."""
        has = [any(folder.glob(pattern)) for pattern in ("topics*", "qrels*", "*queries*")]
        return has == [True, True, False]

    def splits(self) -> Collection[str]:
        return self._found("qrels")

    def corpus_files(self) -> tuple[Path, ...]:
        return (reader.find_file(self.folder, self.corpus_names),)

    def documents(self) -> Iterator[Document]:
        (path,) = self.corpus_files()
        return (read_documents if ".jsonl" in path.name else read_passages)(path)

    def judgement_files(self) -> tuple[Path, ...]:
        files: list[Path] = []
        for name in ("topics", "qrels"):
            missing = f"{self.folder} has no {name} of the split {self.split}"
            found, only = self._found(name), name == "topics"
            paths = reader.choose_split(found, self.split, missing, only)
            if len(paths) > 1:
                names = format_names([path.name for path in paths])
                problem = f"{self.folder} has several {name} of one split: {names}"
                raise BenchError(problem, "Keep one of them.")
            files += paths
        return tuple(files)

    def judgements(self) -> Judgements:
        topics, qrels = self.judgement_files()
        return reader.keep_judged_queries(read_topics(topics), read_trec_qrels(qrels), qrels)

    def _found(self, name: str) -> dict[str, tuple[Path, ...]]:
        found: dict[str, tuple[Path, ...]] = {}
        for path in sorted(path for path in self.folder.glob(f"{name}*") if path.is_file()):
            if match := _NAME.fullmatch(path.name):
                split = match[1] or ""
                found[split] = (*found.get(split, ()), path)
        return found


def read_topics(path: Path) -> Queries:
    """Return the titles of the topics in ``path``."""
    lines = (reader.decode_line(path, number, line) for number, line in reader.read_lines(path))
    text = "\n".join(lines)
    starts = [match.start() for match in _TOPIC.finditer(text)]
    if not starts:
        hint = "Call a file of tab-separated queries queries.*.tsv"
        raise reader.line_error(path, 1, "the file has no <top> or <topic>", hint)
    reader.assume(f"{path.name}: the titles of the topics are the queries", None)
    rows = []
    for start, end in itertools.pairwise([*starts, len(text)]):
        topic, *closed = _END.split(text[start:end], maxsplit=1)
        if not closed:
            reader.assume("topics without an end tag end at the next topic")
        number, title = _NUMBER.search(topic), _TITLE.search(topic)
        query = " ".join(html.unescape(_TAG.sub(" ", title[2])).split()) if title else ""
        if number and query:
            rows.append((0, number[1] or number[2], query))
        else:
            line = text.count("\n", 0, start) + 1
            problem = f"a topic has no number or no title: {topic[:80]!r}"
            report_error(reader.line_error(path, line, problem))
    return reader.collect_queries(rows, path)
