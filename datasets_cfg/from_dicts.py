"""Collections that are Python dictionaries, written once in BEIR's layout."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from datasets_cfg.facts import Facts
from foundation.errors import BenchError
from foundation.files import replacing_folder


def write_dicts(
    corpus: Mapping[str, Mapping[str, str]],
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    name: str,
    cache_dir: Path | None,
    facts: Mapping[str, Any],
) -> tuple[Path, Path]:
    """Write a collection below the cache, named by its content; returns its folder and the cache.

    Raises:
        BenchError: an unknown fact, or a document, query or grade of a wrong type.
    """
    cache = cache_dir or platformdirs.user_cache_path("retrieval-bench")
    declared = {"name": name, "layout": "beir", "split": "test", **facts}
    try:
        msgspec.convert(declared, type=Facts)
    except msgspec.ValidationError as error:
        raise BenchError(f"facts of {name}: {error}", "see the reference of collections") from error
    parts = {
        "corpus.jsonl": list(_documents(corpus)),
        "queries.jsonl": [_line({"_id": id_, "text": text}) for id_, text in queries.items()],
        "qrels/test.tsv": ["query-id\tcorpus-id\tscore", *_judgements(qrels)],
        "dataset.toml": [  # a JSON text or list is one of TOML, too
            f"{key} = {msgspec.json.encode(value).decode()}" for key, value in declared.items()
        ],
    }
    content = hashlib.sha256()
    for file, lines in parts.items():
        content.update(msgspec.json.encode([file, lines]))
    folder = cache / "from-dicts" / content.hexdigest()[:32]
    if not folder.is_dir():
        with replacing_folder(folder) as unfinished:
            (unfinished / "qrels").mkdir()
            for file, lines in parts.items():
                text = "".join(f"{line}\n" for line in lines)
                (unfinished / file).write_text(text, encoding="utf-8")
    return folder, cache


def _documents(corpus: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for id_, document in corpus.items():
        if not isinstance(document, Mapping) or "text" not in document:
            raise BenchError(
                f"document {id_!r} has no text", '{"d1": {"title": "...", "text": "..."}}'
            )
        yield _line({"_id": id_, "title": document.get("title") or "", "text": document["text"]})


def _judgements(qrels: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for query, documents in qrels.items():
        for document, grade in documents.items():
            if isinstance(grade, bool) or int(grade) != grade:
                raise BenchError(f"the grade of {document!r} for {query!r} is {grade!r}", "0, 1, 2")
            if "\t" in f"{query}{document}" or "\n" in f"{query}{document}":
                raise BenchError(f"ids {query!r} and {document!r} have a tab or a line end")
            yield f"{query}\t{document}\t{int(grade)}"


def _line(record: dict[str, str]) -> str:
    return msgspec.json.encode(record).decode()
