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
    "precision": "binary",
    "rescore": "10:int8",
    "index": "bm25",
    "concurrency": 2,
    "passages": "#",
}
APART = [{"precision", "rescore"}, {"index"}]  # settings that do not go with all others
OF_FOLDERS = {"python": {"dtype", "query_prompt"}}  # and not of this example
KNOWN = {
    kind: (KINDS[kind].honours & VALUES.keys()) - OF_FOLDERS.get(kind, set()) for kind in EXAMPLES
}
CASES = [
    (kind, sorted(settings))
    for kind, known in KNOWN.items()
    for settings in (known.difference(*APART), *(some for some in APART if some <= known))
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


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_the_command_of_a_result_has_its_recipe(kind, settings, tmp_path):
    write_collection(tmp_path / "wings")
    with ExitStack() as stack:
        example = EXAMPLES[kind](tmp_path, stack)
        chosen = {name: VALUES[name] for name in settings}
        stored = evaluated(tmp_path, model=example.name, **example.settings, **chosen)
        again, words = repeated(stored, tmp_path)
    assert again.record.fingerprint == stored.record.fingerprint, words
    assert again.record.key == stored.record.key
    assert again.model == stored.model
    assert again.measures == stored.measures


def test_every_setting_of_a_model_is_tried():
    elsewhere = {"like", "adapter", "endpoint_model", "trust_code", "allow_unknown_tokens"}
    tried = set().union(*(settings for _, settings in CASES))
    assert tried | elsewhere >= {each.name for each in attrs.fields(ModelSettings)}
