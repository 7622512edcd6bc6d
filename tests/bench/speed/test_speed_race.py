"""Tools take turns; there is no ratio between results that differ; peers read what we read."""

import sys

import msgspec
import numpy as np
import pytest

from bench.speed.peers import sentence_transformer
from bench.speed.race import (
    TOLERANCE,
    TimedPass,
    ToolRunner,
    check_raceable,
    make_job,
    run_process,
    time_tools,
    write_beir_folder,
)
from datasets_cfg.dataset import open_dataset
from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, write_collection
from tests.support.tiny_checkpoints import SENTENCES, write_bert, write_card

VECTORS = np.zeros((3, 4), np.float32)


def tool(name, seconds, results=(VECTORS,), log=None):
    """A tool that takes known times and gives known results, in turn."""
    given = iter(results * 9)
    times = iter(seconds * 9)

    def run():
        if log is not None:
            log.append(name)
        spent = next(times)
        return TimedPass(spent, 2 * spent, next(given))

    return ToolRunner(name, "1", run)


def raced(*tools, repeats=2, tolerance=1e-5, warm_up=False):
    return time_tools(tools, repeats, tolerance, warm_up=warm_up)


def test_tools_warm_up_once_and_take_turns(capsys):
    log = []
    raced(tool("a", [1], log=log), tool("b", [2], log=log), warm_up=True)
    assert log == list("ab") + list("ab") + list("ba")
    assert "speed: a: 1.00 s wall-clock, 2.00 s CPU" in capsys.readouterr().err


def test_ratios_are_those_of_medians():
    ours, a, b = raced(tool("bench", [1, 2, 3]), tool("a", [4]), tool("b", [8]), repeats=3)
    assert (ours.wall_s.median, ours.processor_s.median) == (2, 4)
    assert (ours.ratio, a.ratio, b.ratio) == (None, 2, 4)
    assert msgspec.json.decode(msgspec.json.encode(a), type=type(a)) == a


@pytest.mark.parametrize(
    ("results", "tolerance", "agrees"),
    [
        ([VECTORS, VECTORS + 9e-6], 1e-5, True),
        ([VECTORS, VECTORS + 2e-5], 1e-5, False),
        ([VECTORS + 5e-3], 1e-2, True),
        ([0.5003], TOLERANCE, True),
        ([0.5, 0.5 - 1.01 * TOLERANCE], TOLERANCE, False),
        ([0.5, np.nan], TOLERANCE, False),
    ],
)
def test_results_of_every_round_must_agree_before_a_ratio_is_given(results, tolerance, agrees):
    own = [0.5] if np.ndim(results[0]) == 0 else [VECTORS]
    ours, other = raced(tool("bench", [1], own), tool("a", [2], results), tolerance=tolerance)
    assert (other.agrees, other.ratio is not None) == (agrees, agrees)
    assert ours.agrees
    assert other.score == (results[0] if np.ndim(results[0]) == 0 else None)


def test_a_collection_is_written_with_the_same_content_and_says_that_it_is_a_copy(tmp_path):
    folder = write_collection(tmp_path / "tiny", metadata="exclude_self = true\ndepth = 7\n")
    dataset = open_dataset(str(folder), cache_dir=tmp_path / "cache")
    again = open_dataset(str(write_beir_folder(dataset, tmp_path)), cache_dir=tmp_path / "cache")
    columns = (again.corpus.ids, again.corpus.titles, again.corpus.texts)
    ids, *texts = (column.to_pylist() for column in columns)
    assert dict(zip(ids, zip(*texts, strict=True), strict=True)) == DOCUMENTS
    judged = {query: text for query, text in QUERIES.items() if query in {q for q, _ in QRELS}}
    assert dict(zip(again.queries.ids, again.queries.texts, strict=True)) == judged
    assert {(query, doc): grade for query, doc, grade in again.qrels} == QRELS
    assert (again.name, again.metadata.exclude_self, again.metadata.depth) == (
        "copy-of-tiny",
        True,
        7,
    )


@pytest.mark.slow
def test_a_process_is_timed_with_its_children_and_its_settings():
    work = "import time\nwhile time.process_time() < 0.4: pass"
    code = (
        f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])\n"
        "import time; time.sleep(.3)\n"
        "print(os.environ['OMP_NUM_THREADS'], os.environ['HF_HUB_OFFLINE'])"
    )
    done = run_process([sys.executable, "-c", code], 3, "it")
    assert done.seconds > 0.3
    assert 0.4 <= done.processor_s < 4
    assert done.result.split() == ["3", "1"]


def test_the_error_of_a_failed_process_quotes_its_last_lines():
    code = "import sys; print('first', file=sys.stderr); sys.exit('it broke')"
    with pytest.raises(BenchError, match="beir failed: it broke") as caught:
        run_process([sys.executable, "-c", code], 1, "beir")
    assert "first" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "normalize"), [("cls", False), ("mean", True)])
def test_sentence_transformers_reads_a_checkpoint_as_its_card_says(tmp_path, pooling, normalize):
    pytest.importorskip("sentence_transformers")
    checkpoint = tmp_path / "checkpoint"
    write_bert(checkpoint)
    (checkpoint / "sentence_bert_config.json").write_text('{"max_seq_length": 77}')
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    settings = {"pooling": pooling, "normalize": normalize, "max_document_tokens": 8}
    settings["similarity"] = "cos" if normalize else "dot"
    card = write_card(tmp_path / "card.toml", checkpoint="checkpoint", **settings)
    model = resolve_model(str(card))
    vectors = sentence_transformer(make_job(model, "cpu", 1)).encode(SENTENCES)
    ours = open_encoder(model, "cpu").encode_documents([""] * len(SENTENCES), SENTENCES)
    np.testing.assert_allclose(vectors, ours, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pooling": "pooler"}, "its pooling pooler"),
        ({"title_join": "pair"}, "its title_join is pair"),
        (None, "hashing cannot be raced"),
    ],
)
def test_settings_that_other_tools_lack_are_refused(tmp_path, fields, said):
    name = "hashing"
    if fields:
        write_bert(tmp_path / "checkpoint")
        settings = {"pooling": "cls", "normalize": False, "similarity": "dot"} | fields
        name = str(write_card(tmp_path / "card.toml", checkpoint="checkpoint", **settings))
    with pytest.raises(BenchError, match=said):
        check_raceable(resolve_model(name))
