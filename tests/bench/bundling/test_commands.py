"""The command that repeats a stored result, for every kind of model and each of its settings."""

from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from bench.cli.main import parse_command
from bench.requests.evaluating import RunRequest
from bench.requests.fields import typed_words
from bench.runner.run import run
from retrievers.models.kinds import KINDS
from retrievers.models.settings import ModelSettings
from tests.bench.evaluation.test_kinds import EXAMPLES
from tests.support.collections import write_collection

VALUES = {
    "max_query_tokens": 4,
    "max_document_tokens": 5,
    "query_prompt": "query: ",
    "store_dtype": "float16",
    "dtype": "bfloat16",
    "dimensions": 8,
    "precision": "int8",
    "rescore": "10:int8",
    "index": "bm25",
    "concurrency": 2,
    "passages": "#",
}
CASES = [
    (kind, option)
    for kind in EXAMPLES
    for option in ("", *sorted(KINDS[kind].honours & VALUES.keys()))
    if (kind, option) not in {("python", "dtype"), ("python", "query_prompt")}  # of folders only
]


def evaluated(folder: Path, **fields):
    """The only evaluation of a request, with cache and results in a folder."""
    places = {"results": folder / "results", "cache_dir": folder / "cache"}
    report = run(RunRequest(names=folder / "wings", **places, **fields))
    return report.evaluations[0]


def repeated(stored, folder: Path):
    """The evaluation by the command that its record states, and its words."""
    where = stored.record.conditions
    words = typed_words(where.command, where.request, "names")
    places = ("--cache-dir", str(folder / "cache"), "--results", str(folder / "again"))
    parsed = parse_command([*words, *places])
    assert parsed is not None
    return run(parsed.request).evaluations[0], words


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_the_command_of_a_result_has_its_recipe(kind, option, tmp_path):
    write_collection(tmp_path / "wings")
    with ExitStack() as stack:
        example = EXAMPLES[kind](tmp_path, stack)
        chosen = {option: VALUES[option]} if option else {}
        if option == "rescore":
            chosen["precision"] = "binary"
        stored = evaluated(tmp_path, model=example.name, **example.settings, **chosen)
        again, words = repeated(stored, tmp_path)
    assert again.record.fingerprint == stored.record.fingerprint, words
    assert again.record.key == stored.record.key
    assert again.model == stored.model
    assert again.measures == stored.measures


def test_every_setting_of_a_model_is_tried():
    tried = {option for _, option in CASES} | {"like", "adapter", "endpoint_model", "trust_code"}
    assert tried >= {each.name for each in attrs.fields(ModelSettings)} - {"allow_unknown_tokens"}
