"""Presets: strict, shipped with the papers' figures, and changed by name."""

import msgspec
import pytest

from foundation.errors import BenchError
from retrievers.training.preset import FINETUNE_PRESETS, Contrastive, Mining, UsageSettings
from tests.support.small_finetuning import preset

BM25 = "hard_negatives = 1\n[[rounds]]\nsources = ['bm25']\n"
PAPERS = {
    # name: queries of a step over all devices, negatives, lr, epochs, lengths of both, and whether
    # the authors' command has --fp16
    "ance-paper": (64, 1, 1e-6, None, 64, 512, "float32"),
    "ance-warmup": (32, 1, 1e-5, None, 64, 128, "float16"),
    "dpr": (128, 1, 2e-5, 40, 256, 256, "float32"),
    "cocondenser-msmarco-paper": (8, 7, 5e-6, 3, 32, 128, "float16"),
    "retromae-msmarco-paper": (128, 15, 2e-5, 4, 32, 140, "float16"),
    "retromae-msmarco-distill-paper": (128, 15, 2e-5, 4, 32, 140, "float16"),
    "retromae-beir": (1024, 1, 1e-5, 10, 32, 144, "float16"),
}


@pytest.mark.parametrize("name", PAPERS)
def test_presets_of_papers_have_the_papers_figures(name):
    found = FINETUNE_PRESETS.load(name)
    query = found.max_query_tokens or found.use.max_query_tokens
    document = found.max_document_tokens or found.use.max_document_tokens
    figures = (found.batch_size, found.hard_negatives, found.optimizer.lr, found.epochs)
    assert (*figures, query, document, found.precision) == PAPERS[name]
    assert (found.use.pooling, found.use.normalize, found.use.similarity) == ("cls", False, "dot")


def test_the_preset_of_ance_is_the_authors():
    """commands/run_train.sh (passages) and run_train_warmup.sh of github.com/microsoft/ANCE."""
    ance, warmup = FINETUNE_PRESETS.load("ance-paper"), FINETUNE_PRESETS.load("ance-warmup")
    for found in (ance, warmup, FINETUNE_PRESETS.load("ance-small")):
        assert found.loss == Contrastive(in_batch=False)
        assert found.optimizer.weight_decay == 0.0
    assert ance.optimizer.warmup * ance.steps == 5_000
    assert round(warmup.optimizer.warmup * warmup.steps, -1) == 1_000
    (mining,) = ance.rounds
    assert (mining.sources, mining.depth, mining.refresh_steps) == (("model",), 200, 10_000)
    # utils/util.py asks for lower case, run_train_warmup.sh does not
    assert (ance.use.lower_case, warmup.use.lower_case) == (True, msgspec.UNSET)


def test_the_fingerprint_of_a_cased_preset_is_unchanged():
    before = (
        '{"pooling":null,"normalize":null,"similarity":null,"title_join":null,'
        '"segment_ids":null,"max_query_tokens":null,"max_document_tokens":null}'
    )
    assert msgspec.json.encode(msgspec.to_builtins(UsageSettings())).decode() == before
    found = FINETUNE_PRESETS.changed(
        FINETUNE_PRESETS.load("dpr"), {"use.lower_case": True}, "typed"
    )
    assert found.use.lower_case is True
    assert (
        FINETUNE_PRESETS.changed(found, {"use.lower_case": False}, "typed").use.lower_case is False
    )


def test_the_second_round_of_cocondenser_has_two_epochs_with_the_negatives_of_either():
    """examples/coCondenser-marco of tevatron 0.1.0: its set has each query once with either."""
    found = FINETUNE_PRESETS.load("cocondenser-msmarco-paper")
    assert [found.steps_for(mining, 800) for mining in found.rounds] == [300, 400]


def test_the_teacher_of_retromae_is_the_authors_reranker():
    """examples/reranker of github.com/staoxiao/RetroMAE."""
    found = FINETUNE_PRESETS.load("retromae-msmarco-distill-paper").teacher
    assert (found.loss, 1 + found.negatives, found.max_tokens) == ("listwise", 65, 200)
    assert found.batch_size * found.accumulate == 16
    assert (found.optimizer.lr, found.epochs, found.optimizer.weight_decay) == (1e-5, 4.0, 0.01)
    steps = 4 * 502_939 / 16
    assert found.optimizer.warmup * steps == pytest.approx(1_000, rel=0.01)


@pytest.mark.parametrize("name", FINETUNE_PRESETS.names())
def test_every_shipped_preset_can_be_read_and_names_its_source(name):
    assert FINETUNE_PRESETS.load(name).source.startswith("https://")
    assert FINETUNE_PRESETS.load(FINETUNE_PRESETS.folder / f"{name}.toml") == FINETUNE_PRESETS.load(
        name
    )


def test_epochs_become_steps_of_whole_batches():
    settings = FINETUNE_PRESETS.parse(b'title = "t"\nepochs = 2.5\nbatch_size = 4', "t")
    assert settings.steps_for(Mining(), 10) == 6
    assert settings.steps_for(Mining(), 1) == 1
    assert preset(steps=9).steps_for(Mining(), 10) == 9


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("stepz = 3", "unknown field 'stepz'", "did you mean steps?"),
        ("[loss]\nname = 'klx'", "name is 'klx'", "kl"),
        ("[loss]\nname = 'kl'", "needs a \\[teacher\\]", ""),
        ("epochs = 2.0", "either steps or epochs", ""),
        ("hard_negatives = 1", "or neither", ""),
        ("[[rounds]]\nsources = ['bm25']", "or neither", ""),
        ("[teacher]", "a teacher needs a margin", ""),
        ("[loss]\nname = 'contrastive'\nin_batch = false", "hard_negatives must be", ""),
        ("[loss]\nname = 'contrastive'\nin_batch = false\nchunk = 2", "chunk needs in-batch", ""),
        ("[optimizer]\nalgorithm = 'adam'", "algorithm is 'adam'", "adamw"),
        ("[teacher]\nmargin = 1.0", "needs hard_negatives", ""),
        ("[optimizer]\nlr = 0", "Expected `float` > 0", ""),
        ("rounds = []", "at least one round", ""),
        ("batch_size = 1", "Expected `int` >= 2", ""),
        (
            "hard_negatives = 1\n[[rounds]]\nsources = ['model']\nrefresh_steps = 2\n"
            "[loss]\nname = 'kl'\n[teacher]",
            "refreshed negatives have no",
            "",
        ),
        ("[teacher]\nmodel = 'a'\nstart = 'b'", "either model or start", ""),
        (BM25 + "margin = 0.1", "margin and refresh_steps need", ""),
        (BM25.replace("['", "['bm25', '"), "listed twice", ""),
        (BM25 + "depth = 0", "at least 1", ""),
        (BM25.replace("bm25", "web"), "sources.0 is 'web'", "bm25"),
        ('part = { name = "first-layers" }', "name is 'first-layers'", ""),
        (
            'part = { name = "biases" }\nadapter = { method = "lora" }',
            "either adapter or part",
            "",
        ),
        ("= 3", "not TOML", ""),
    ],
)
def test_a_wrong_preset_is_refused_and_says_what_was_meant(text, problem, hint):
    head = "" if "batch_size" in text or text == "= 3" else "batch_size = 4\n"
    with pytest.raises(BenchError, match=problem) as caught:
        FINETUNE_PRESETS.parse(f'title = "t"\nsteps = 3\n{head}{text}'.encode(), "mine.toml")
    assert "mine.toml" in str(caught.value)
    assert hint in caught.value.hint
