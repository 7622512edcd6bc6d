"""The losses against NumPy and loops; gradient caching against all at once."""

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from retrievers.training.finetune.losses import build_loss, reranker_loss
from retrievers.training.finetune.student import TextInputs, build_student
from retrievers.training.preset import KL, Contrastive, MarginMSE, Teacher
from tests.support.small_finetuning import QUERIES, TEXTS, TITLES, model

BATCH, DIM, NEGATIVES = 4, 5, 3


class Given(nn.Module):
    """Stands where the model does: its features are the vectors."""

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self):
        return DIM


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(BATCH, DIM)) for _ in range(2 + NEGATIVES)]


@pytest.fixture
def teacher():
    return np.random.default_rng(1).normal(size=(BATCH, 1 + NEGATIVES)) * 3


def found(settings, vectors, labels=None, **others):
    features = [{"vectors": torch.tensor(one)} for one in vectors]
    targets = None if labels is None else torch.tensor(labels)
    return float(build_loss(settings, Given(), **others)(features, targets))


def contrastive_by_hand(vectors, temperature):
    queries, documents = vectors[0], vectors[1:]
    total = 0.0
    for i in range(BATCH):
        scores = [
            queries[i] @ column[j] / temperature for column in documents for j in range(BATCH)
        ]
        own = queries[i] @ documents[0][i] / temperature
        total += np.log(sum(np.exp(score) for score in scores)) - own
    return total / BATCH


def own_scores(vectors, temperature):
    """Of each query with its own documents, ``(batch, 1 + negatives)``."""
    return np.array(
        [[vectors[0][i] @ column[i] / temperature for column in vectors[1:]] for i in range(BATCH)]
    )


def softmax(row):
    return np.exp(row) / np.exp(row).sum()


@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("documents", [1, 1 + NEGATIVES])
def test_contrastive_is_cross_entropy_over_all_documents_of_the_batch(
    vectors, temperature, documents
):
    some = vectors[: 1 + documents]
    loss = found(Contrastive(), some, temperature=temperature)
    assert loss == pytest.approx(contrastive_by_hand(some, temperature), abs=1e-9)


def test_without_in_batch_negatives_only_own_negatives_count(vectors):
    expected = -np.mean([np.log(softmax(row)[0]) for row in own_scores(vectors, 0.5)])
    loss = found(Contrastive(in_batch=False), vectors, temperature=0.5)
    assert loss == pytest.approx(expected, abs=1e-9)
    assert loss < found(Contrastive(), vectors, temperature=0.5)


class Scoring(nn.Module):
    """Stands where a cross-encoder does: a document is its score."""

    device = torch.device("cpu")

    def preprocess(self, pairs, prompt=None, task=None):
        return {"given": torch.tensor([document for _, document in pairs])}

    def forward(self, features):
        return {"scores": features["given"][:, None]}


def test_the_listwise_loss_is_the_likelihood_of_the_relevant_document():
    """By hand, as in the authors' cross-encoder: a softmax over the documents of each query."""
    scores = np.random.default_rng(3).normal(size=(BATCH, 1 + NEGATIVES)) * 4
    expected = -np.mean([np.log(softmax(row)[0]) for row in scores])
    loss = reranker_loss(Scoring(), Teacher(loss="listwise", negatives=NEGATIVES))
    texts = [["q"] * scores.size, scores.ravel().tolist()]
    labels = torch.tensor([1.0, *[0.0] * NEGATIVES] * BATCH)
    assert float(loss(texts, labels)) == pytest.approx(expected, abs=1e-6)


def test_kl_compares_with_the_teacher_over_the_documents_of_a_query(vectors, teacher):
    expected = 0.0
    for scores, targets in zip(own_scores(vectors, 0.5), teacher, strict=True):
        p, q = softmax(targets / 2), softmax(scores)
        expected += sum(p[j] * np.log(p[j] / q[j]) for j in range(1 + NEGATIVES)) / BATCH
    loss = found(KL(teacher_temperature=2.0), vectors, teacher, temperature=0.5)
    assert loss == pytest.approx(expected, abs=1e-9)


def test_a_share_of_the_contrastive_loss_is_added(vectors, teacher):
    plain = found(KL(), vectors, teacher)
    mixed = found(KL(contrastive_weight=0.25), vectors, teacher)
    assert mixed - plain == pytest.approx(0.25 * contrastive_by_hand(vectors, 1.0), abs=1e-9)


def test_margin_mse_is_the_squared_error_of_the_margins(vectors, teacher):
    scores = own_scores(vectors, 0.5)
    errors = (scores[:, :1] - scores[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])
    loss = found(MarginMSE(), vectors, teacher, temperature=0.5)
    assert loss == pytest.approx(np.mean(errors**2), abs=1e-9)


@pytest.mark.parametrize(
    "settings",
    [Contrastive(), Contrastive(in_batch=False), KL(contrastive_weight=0.5), MarginMSE()],
    ids=str,
)
def test_matryoshka_adds_the_losses_of_leading_dimensions_of_unit_length(
    vectors, teacher, settings
):
    units = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in vectors]
    labels = None if isinstance(settings, Contrastive) else teacher
    expected = 0.0
    for dimensions in (DIM, 3, 2):
        cut = [one[:, :dimensions] for one in units]
        cut = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in cut]
        expected += found(settings, cut, labels, temperature=0.3)
    nested = msgspec.structs.replace(settings, matryoshka=(3, 2))
    assert found(nested, units, labels, temperature=0.3) == pytest.approx(expected, abs=1e-9)


def test_gradients_of_cached_batches_are_those_of_whole_ones(tmp_path):
    start = model(tmp_path, normalize=True, similarity="cos")
    trained = build_student(start, start.recipe).eval()
    inputs = TextInputs(trained[0].processor, trained[0].model, start.recipe)
    rows = [0, 9, 18, 27, 36, 40]
    features = [inputs.queries(QUERIES[:6])] + [
        inputs.documents([TITLES[row - n] for row in rows], [TEXTS[row - n] for row in rows])
        for n in range(2)
    ]
    found = {}
    for chunk in (0, 1, 4):
        trained.zero_grad()
        loss = build_loss(Contrastive(chunk=chunk), trained, temperature=0.05)(features, None)
        loss.backward()
        weights = [one.grad.clone() for one in trained.parameters() if one.grad is not None]
        found[chunk] = [loss.detach(), *weights]
    assert max(float(one.norm()) for one in found[0]) > 1e-2
    for chunk in (1, 4):
        torch.testing.assert_close(found[chunk], found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("settings", [Contrastive(), KL()])
def test_in_bfloat16_vectors_are_rounded_and_scores_are_not(vectors, teacher, settings):
    rounded = [torch.tensor(one).bfloat16() for one in vectors]
    labels = None if isinstance(settings, Contrastive) else teacher
    exact = found(settings, [one.double().numpy() for one in rounded], labels, temperature=0.02)
    loss = build_loss(settings, Given(), temperature=0.02)
    targets = None if labels is None else torch.tensor(labels)
    with torch.autocast("cpu", torch.bfloat16):
        half = loss([{"vectors": one} for one in rounded], targets)
    assert float(half) == pytest.approx(exact, rel=1e-4)


def test_cosine_has_a_lower_temperature_unless_one_is_set():
    assert Contrastive().temperature_for("dot") == 1.0
    assert KL().temperature_for("cos") == 0.05
    assert KL(temperature=0.3).temperature_for("cos") == 0.3
