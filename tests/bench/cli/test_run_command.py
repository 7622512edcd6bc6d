"""``run`` over several collections: what is official, what is said, what is missing."""

import errno
import json
import shutil

import pytest

from bench.requests.fields import FolderFields, ModelFields
from bench.requests.outcomes import MissingEvaluations
from bench.result_store.result import load
from bench.runner.workspace import load_models, open_workspace
from foundation.errors import BenchError
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import write_collection, write_qrels


@pytest.mark.slow
def test_of_several_collections_one_that_cannot_be_had_is_a_gap(bench, bench_data):
    data = bench.place / "data"
    (data / "beir").mkdir(parents=True)
    (data / "beir" / "nfcorpus").symlink_to(bench_data / "beir" / "nfcorpus")
    cut = shutil.copytree(bench_data / "beir" / "scifact", data / "beir" / "scifact")
    whole = (cut / "corpus.jsonl").read_bytes()
    (cut / "corpus.jsonl").write_bytes(whole[: len(whole) // 2])
    names = ("beir/scifact", "beir/arguana", "beir/nfcorpus")
    command = ("run", *names, "--model", "hashing", "--data-dir", data)
    done = bench(*command)
    assert done.code == 4, done.stderr
    assert load(bench.results("beir/nfcorpus", "hashing")).record.protocol.official
    gaps = done.stdout.partition("not evaluated")[2]
    assert "| beir/nfcorpus" not in gaps
    assert "corpus.jsonl:" in " ".join(gaps.split())
    assert "downloads are off" in " ".join(gaps.split())
    assert "warning: 2 of 3 collections cannot be opened" in done.stderr
    assert "arguana" not in done.stderr
    assert gaps.count("| beir/arguana ") == gaps.count("| beir/scifact ") == 1
    assert "--data-dir DIR" in " ".join(gaps.split())

    document = json.loads(bench(*command, "--json").stdout)
    assert [result["protocol"]["collection"] for result in document["results"]] == [names[2]]
    assert [(gap["collection"], gap["model"]) for gap in document["gaps"]] == [
        (names[0], ""),
        (names[1], ""),
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BenchError("cut short", "copy it again"), "cut short"),
        (OSError(errno.ENOSPC, "No space left on device"), "a file: No space left on device"),
        (MemoryError(), "not enough memory: MemoryError"),
        (RuntimeError("CUDA out of memory.\nTried"), "not enough memory: CUDA out of memory."),
    ],
)
def test_a_gap_states_its_reason(error, reason, capsys):
    gaps = MissingEvaluations(stop=False)
    with gaps.catch("beir/nq", "minilm"):
        raise error
    (gap,) = gaps.missing
    assert (gap.collection, gap.model, gap.reason) == ("beir/nq", "minilm", reason)
    assert f"warning: minilm on beir/nq is not evaluated: {reason}" in capsys.readouterr().err
    with pytest.raises(type(error)), MissingEvaluations(stop=True).catch("beir/nq"):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("defect"), KeyboardInterrupt(), BrokenPipeError()])
def test_a_defect_and_an_interruption_are_not_recorded_as_gaps(error):
    gaps = MissingEvaluations(stop=False)
    with pytest.raises(type(error)), gaps.catch("beir/nq"):
        raise error
    assert gaps.missing == []


def test_a_collection_whose_corpus_has_no_relevant_document_is_refused(bench):
    folder = write_collection(bench.place / "tiny")
    write_qrels(folder, {("q1", "d1 "): 1, ("q2", "d9 "): 1, ("q3", "d10"): 0})
    done = bench("run", folder, "--model", "bm25")
    assert done.code == 2
    assert "none of the 2 relevant documents, such as 'd1 '; its first" in done.stderr
    assert not bench.out.exists()

    write_qrels(folder, {("q1", "x1"): 1, ("q2", "x2"): 1})
    done = bench("run", folder, "--model", "bm25")
    assert done.code == 2
    assert "Check that corpus and qrels are of the same release" in done.stderr


def test_like_is_for_the_models_of_a_run_that_have_no_card(tmp_path):
    tiny.write_bert(tmp_path / "plain")
    like = tiny.write_card(tmp_path / "like.toml", checkpoint=".", pooling="mean")
    workspace, use = open_workspace(FolderFields(cache_dir=tmp_path)), ModelFields(like=str(like))
    hashing, plain = load_models(workspace, ["hashing", str(tmp_path / "plain")], use)
    assert (hashing.name, plain.name) == ("hashing", "plain")
    assert plain.model.recipe.pooling == "mean"
    with pytest.raises(BenchError, match="hashing is a card"):
        load_models(workspace, ["hashing"], use)
