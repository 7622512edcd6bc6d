"""The cross-encoder: what it is trained on, what it scores, and what a retriever learns from it."""

import shutil

import numpy as np
import pytest
import torch

from foundation.errors import BenchError
from retrievers.encoders.library import load_cross_encoder
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.folder import ModelFolder
from retrievers.models.resolve import resolve_model
from retrievers.training.engine.context import read_curve
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.teacher import (
    TextPairs,
    drop_close_negatives,
    new_cross_encoder,
    plan_pairs,
    read_documents,
    score_pool,
)
from retrievers.training.finetune.training_data import NegativePool
from retrievers.training.preset import Teacher
from tests.support.small_finetuning import (
    DOCUMENTS,
    MINED,
    QUERIES,
    TEXTS,
    Search,
    examples,
    model,
    preset,
    tiny,
)
from tests.support.small_starts import on_cpu

POOL = np.array([[32, 33, 34], [33, 34, -1], *[[33, 34, 35]] * 5])
SMALL = "batch_size = 4\nmax_tokens = 24\nepochs = 3.0\n[teacher.optimizer]\nlr = 1e-3\n"


def trained_teacher(folder):
    """A folder with one score for a pair."""
    tiny.write_bert(folder / "encoder")
    teacher = new_cross_encoder(Checkpoint.of_network(ModelFolder(folder / "encoder")), 24)
    teacher.model.save_pretrained(str(folder / "teacher"))
    teacher.tokenizer.save_pretrained(str(folder / "teacher"))
    return folder / "teacher"


def test_the_teacher_learns_from_each_query_once_an_epoch_with_its_negatives():
    settings = Teacher(negatives=2, batch_size=1, epochs=2.0)
    places = plan_pairs(examples(), POOL, settings, seed=0)
    assert len(places) == 2 * 7 * 3  # each has two negatives at least
    for epoch in np.split(places, 2):
        queries, rows, labels = epoch.T
        assert sorted(queries[labels == 1]) == [*range(7)]
        assert all(row in examples().positives[query] for query, row, one in epoch if one)
        assert all(row in POOL[query] for query, row, one in epoch if not one)
        pairs = list(zip(queries.tolist(), rows.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
    assert (places == plan_pairs(examples(), POOL, settings, seed=0)).all()
    assert (places != plan_pairs(examples(), POOL, settings, seed=1)).any()


def test_lists_have_all_their_negatives_the_missing_ones_at_random():
    settings = Teacher(loss="listwise", negatives=5, batch_size=2, accumulate=3, epochs=2.0)
    places = plan_pairs(examples(), POOL, settings, seed=0)
    assert places.shape == (12, 6, 3)  # of 14 lists; a step has 6
    for shown in places:
        (query,) = set(shown[:, 0])
        assert shown[:, 2].tolist() == [1, 0, 0, 0, 0, 0]
        assert shown[0, 1] in examples().positives[query]
        mined = POOL[query][POOL[query] >= 0]
        assert set(mined) <= set(shown[1:, 1])
        assert not set(shown[1:, 1]) & set(examples().positives[query])
    batch = TextPairs(examples(), places)([{"index": 1}, {"index": 0}])
    assert batch["query"] == [QUERIES[row] for row in places[[1, 0], :, 0].ravel()]
    assert batch["label"].tolist() == [1, 0, 0, 0, 0, 0] * 2
    pairs = TextPairs(examples(), np.array([[0, 1, 1], [2, 30, 0]]))([{"index": 1}, {"index": 0}])
    assert pairs["document"] == [f"{TEXTS[30].split()[0]} {TEXTS[30]}", TEXTS[1]]


@pytest.mark.slow
def test_a_teacher_learns_from_lists(tmp_path):
    listwise = SMALL.replace("epochs = 3.0", "epochs = 30.0").replace("1e-3", "1e-2")
    listwise = f'loss = "listwise"\nnegatives = 3\naccumulate = 2\n{listwise}'
    table = f'{MINED}[loss]\nname = "kl"\n[teacher]\n{listwise}'
    steps = []
    finetune(
        preset(table, steps=1),
        model(tmp_path),
        examples(),
        on_cpu(tmp_path / "out", progress=lambda done: steps.append((done.stage, done.total))),
        search=Search(),
    )
    assert ("teacher", 7 * 30 // 8) in steps
    losses = [one.losses["loss"] for one in read_curve(tmp_path / "out/teacher/losses.jsonl")]
    assert losses[0] == pytest.approx(np.log(4), abs=0.3)  # as likely as any of four
    assert np.mean(losses[-5:]) < losses[0] - 0.2


def test_too_few_pairs_for_a_batch_are_refused():
    with pytest.raises(BenchError, match="the teacher has 21 pairs, a step needs 99"):
        plan_pairs(examples(), POOL, Teacher(negatives=2, batch_size=99), seed=0)


def test_scores_are_the_logits_of_every_pair_one_by_one(tmp_path):
    teacher = load_cross_encoder(trained_teacher(tmp_path), "cpu", "float32", 24)
    pool = score_pool(teacher, examples(), POOL, on_cpu(tmp_path / "scores"), 4)
    teacher.eval()

    def by_hand(query, row):
        encoded = teacher.tokenizer(
            QUERIES[query], read_documents(DOCUMENTS, np.array([row]))[0], return_tensors="pt"
        )
        with torch.no_grad():
            return float(teacher.model(**encoded).logits[0, 0])

    for query, own in enumerate(examples().positives):
        expected = [by_hand(query, row) for row in own]
        np.testing.assert_allclose(pool.positive_scores[query], expected, atol=1e-5)
        for place, row in enumerate(POOL[query]):
            expected = by_hand(query, row) if row >= 0 else -np.inf
            assert pool.scores[query, place] == pytest.approx(expected, abs=1e-5)


def test_a_margin_drops_what_scores_too_close_to_the_lowest_relevant_document():
    scores = np.array([[5.0, 2.0, 1.9], [3.1, -np.inf, -np.inf]], np.float32)
    pool = NegativePool(
        np.array([[7, 8, 9], [7, -1, -1]]),
        scores,
        [np.array([9.0, 5.0], np.float32), np.array([6.0], np.float32)],
    )
    assert drop_close_negatives(pool, 3.0).rows.tolist() == [[-1, 8, 9], [-1, -1, -1]]


@pytest.mark.slow
def test_a_retriever_is_trained_with_a_teacher_that_is_trained_first(tmp_path):
    table = f'{MINED}[loss]\nname = "kl"\ncontrastive_weight = 0.2\n[teacher]\n{SMALL}'
    stages = []
    trained = finetune(
        preset(table, steps=3, batch_size=2),
        model(tmp_path),
        examples(),
        on_cpu(tmp_path / "out", progress=lambda progress: stages.append(progress.stage)),
        search=Search(),
    )
    assert list(dict.fromkeys(stages)) == ["teacher", "teacher scores", "round 1"]
    assert trained.steps == 3
    assert resolve_model(str(tmp_path / "out")).recipe.pooling == "cls"
    again = load_cross_encoder(tmp_path / "out" / "teacher", "cpu", "float32", 24)
    scores = again.predict(
        [(QUERIES[0], read_documents(DOCUMENTS, examples().positives[0][:1])[0])],
        activation_fn=torch.nn.Identity(),
    )
    kept = np.load(next((tmp_path / "out" / "teacher-scores").glob("*.npy")))
    assert kept[0] == pytest.approx(float(scores[0]), abs=1e-5)


def test_a_trained_teacher_is_used_as_it_is(tmp_path):
    folder = trained_teacher(tmp_path)
    table = f'{MINED}[loss]\nname = "kl"\n[teacher]\nmodel = "{folder}"\nmax_tokens = 24\n'
    start = model(tmp_path)
    finetune(preset(table, steps=1), start, examples(), on_cpu(tmp_path / "out"), search=Search())
    assert not (tmp_path / "out" / "teacher").exists()
    shutil.rmtree(folder)
    with pytest.raises(BenchError, match="no folder"):
        finetune(
            preset(table, steps=1), start, examples(), on_cpu(tmp_path / "other"), search=Search()
        )


def test_an_encoder_is_not_accepted_as_a_trained_teacher(tmp_path):
    tiny.write_bert(tmp_path / "encoder")
    with pytest.raises(BenchError, match="lacks weights"):
        load_cross_encoder(tmp_path / "encoder", "cpu", "float32", 24)


def test_a_margin_of_the_teacher_that_leaves_nothing_is_an_error(tmp_path):
    folder = trained_teacher(tmp_path)
    table = (
        f'{MINED}[loss]\nname = "kl"\n[teacher]\nmodel = "{folder}"\nmargin = 99.0\n'
        "max_tokens = 24\n"
    )
    with pytest.raises(BenchError, match="no negatives are left"):
        finetune(
            preset(table), model(tmp_path), examples(), on_cpu(tmp_path / "out"), search=Search()
        )
