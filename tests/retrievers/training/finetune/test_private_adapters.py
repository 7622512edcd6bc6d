"""A shared adapter and a private one for each domain, trained together: who learns from what."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from foundation.errors import BenchError
from retrievers.adapters.parts import base_of
from retrievers.adapters.routing import fit_router
from retrievers.adapters.settings import Adapter
from retrievers.adapters.stack import stack_adapters
from retrievers.adapters.train import add_adapter
from retrievers.encoders.opening import open_encoder
from retrievers.models.loading import load_network
from retrievers.models.model import resolve_model
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.finetune_preset import changed, load_preset
from retrievers.training.finetune.order import order_of
from retrievers.training.finetune.training_data import TextKeys
from tests.support.small_finetuning import (
    TEXTS,
    TITLES,
    Search,
    examples,
    model,
    on_cpu,
    preset,
)

pytest.importorskip("adapters", exc_type=ImportError)
DOMAINS = (("toy/a",), ("toy/b",))
PRIVATE = '[adapter]\nmethod = "seq_bn"\nprivate = true\nlr = 0.05\n'


def two_domains():
    return replace(examples(), domain_of=np.array([0, 1, 0, 1, 0, 1, 0]), domains=DOMAINS)


def gradients(network):
    """Largest gradient of each adapter; None where it has none at all."""
    found = {}
    for name, weight in network.named_parameters():
        part = next((one for one in name.split(".") if one in ("bench", *PARTS)), None)
        if part is None:
            assert not weight.requires_grad
            continue
        largest = None if weight.grad is None else float(weight.grad.abs().max())
        found[part] = max((x for x in (found.get(part), largest) if x is not None), default=None)
    return found


PARTS = ("private_1", "private_2")


@pytest.mark.parametrize("method", ["seq_bn", "lora"])
def test_a_batch_of_a_domain_teaches_the_shared_adapter_and_its_own_alone(tmp_path, method):
    base = model(tmp_path)
    network = load_network(base.document, base.recipe)
    adapted = add_adapter(network, Adapter(method=method, private=True), base, 0, DOMAINS)
    ids = torch.arange(5, 21).reshape(2, 8)
    for weight in network.parameters():  # an adapter starts as the identity
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
    states, sums = [], []
    for domain in (0, 1):
        network.zero_grad(set_to_none=True)
        adapted.use(domain)
        vectors = network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        vectors.square().sum().backward()
        largest = gradients(network)
        assert largest[PARTS[1 - domain]] in (None, 0)
        assert largest["bench"] > 0
        assert largest[PARTS[domain]] > 0
        states.append(vectors.detach().numpy())
        shared = [w for name, w in network.named_parameters() if ".bench." in name]
        sums.append([weight.grad.clone() for weight in shared if weight.grad is not None])
    assert np.abs(states[0] - states[1]).max() > 1e-3
    network.zero_grad(set_to_none=True)
    for domain in (0, 1):  # of both domains' batches, the shared one gets the sum
        adapted.use(domain)
        output = network(input_ids=ids, attention_mask=torch.ones_like(ids))
        output.last_hidden_state.square().sum().backward()
    both = [w.grad for w in shared if w.grad is not None]
    for total, first, second in zip(both, *sums, strict=True):
        torch.testing.assert_close(total, first + second)


def vectors(resolved):
    return open_encoder(resolved, "cpu").encode_documents(TITLES, TEXTS)


def test_a_collection_is_encoded_with_its_two_adapters_and_another_with_the_shared_one(tmp_path):
    settings = preset(PRIVATE, steps=4)
    finetune(settings, model(tmp_path), two_domains(), on_cpu(tmp_path / "out"))
    whole, folder = resolve_model(str(tmp_path / "out")), tmp_path / "out" / "adapter"
    base, made = base_of([folder / "bench"]), {}
    for name, private in (("toy/a", "private_1"), ("toy/b", "private_2")):
        hand = tmp_path / private
        stack_adapters(base, [folder / private / "bench", folder / private / private], hand)
        made[name] = vectors(whole.for_dataset(name))
        np.testing.assert_allclose(made[name], vectors(resolve_model(str(hand))), atol=1e-6)
    alone = resolve_model(str(tmp_path / "start.toml"), adapter=str(folder / "bench"))
    made["beir/fiqa"] = vectors(whole.for_dataset("beir/fiqa"))
    np.testing.assert_allclose(made["beir/fiqa"], vectors(alone), atol=1e-6)
    made["start"] = vectors(resolve_model(str(tmp_path / "start.toml")))
    names = list(made)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            assert np.abs(made[one] - made[other]).max() > 1e-4


@pytest.mark.parametrize("by", ["centroid", "classifier"])
def test_queries_choose_among_private_adapters_as_the_preset_says(tmp_path, by):
    text = PRIVATE + f'chosen_by = "{by}"\n'
    training = two_domains()
    finetune(preset(text, steps=4), model(tmp_path), training, on_cpu(tmp_path / "out"))
    encoder = open_encoder(resolve_model(str(tmp_path / "out")), "cpu")
    queries, documents = (
        encoder.encode_queries(training.queries),
        encoder.encode_documents(TITLES, TEXTS),
    )
    base, folder = base_of([tmp_path / "out"]), tmp_path / "out" / "adapter"
    texts = [np.array(training.queries)[training.domain_of == d].tolist() for d in (0, 1)]
    router = fit_router(by, [open_encoder(base, "cpu").encode_queries(own) for own in texts])
    chosen = router.choose(open_encoder(base, "cpu").encode_queries(training.queries))
    parts = []
    for private in PARTS:
        hand = tmp_path / private
        stack_adapters(base, [folder / private / "bench", folder / private / private], hand)
        part = open_encoder(resolve_model(str(hand)), "cpu")
        own = part.encode_queries(training.queries) @ part.encode_documents(TITLES, TEXTS).T
        parts.append(own)
    expected = np.stack(parts)[chosen, np.arange(len(chosen))]
    np.testing.assert_allclose(queries @ documents.T, expected, atol=1e-4)


def test_a_batch_has_queries_of_one_domain_and_every_query_comes_once_an_epoch():
    training = two_domains()
    keys = TextKeys.read(training.documents, training.positives)
    order = order_of(training, keys, 2, 60, 3, training.domain_of)
    of_batch = training.domain_of[order.queries]
    assert (of_batch == of_batch[:, :1]).all()
    assert 0.4 < (of_batch[:, 0] == 0).mean() < 0.75  # 4 of 7 queries
    for domain, queries in ((0, [0, 2, 4, 6]), (1, [1, 3, 5])):
        shown = order.queries[of_batch[:, 0] == domain].ravel().tolist()
        counts = [shown.count(query) for query in queries]
        assert max(counts) - min(counts) <= 2
    again = order_of(training, keys, 2, 60, 3, training.domain_of)
    np.testing.assert_array_equal(order.queries, again.queries)


def test_the_preset_of_private_adapters_trains_one_of_each_collection(tmp_path):
    """Its own adapter and steps, on documents of one search and with batches that seven allow."""
    changes = {"batch_size": 2, "steps": 2, "max_document_tokens": 16}
    settings = changed(load_preset("adapter-private-small"), changes, "test")
    finetune(settings, model(tmp_path), two_domains(), on_cpu(tmp_path / "out"), mine=Search())
    folder = tmp_path / "out" / "adapter"
    assert all((folder / private / private).is_dir() for private in PARTS)


def test_what_cannot_be_private_is_one_error(tmp_path):
    base = model(tmp_path)
    with pytest.raises(BenchError, match="two collections or more"):
        finetune(preset(PRIVATE), base, examples(), on_cpu(tmp_path / "out"))
    for settings, message in (
        (preset(PRIVATE, batch_size=4), "a batch of 4 queries is more than the 3"),
        (preset(PRIVATE.replace("seq_bn", "loreft")), "only at the bottom of a stack"),
        (preset(PRIVATE.replace("seq_bn", "par_bn")), "drops what is below a parallel adapter"),
    ):
        with pytest.raises(BenchError, match=message):
            finetune(settings, base, two_domains(), on_cpu(tmp_path / "out"))
    for more in ('over = ["x"]\n', "norms = true\n", 'library = "peft"\n'):
        with pytest.raises(BenchError, match="private adapters are of AdapterHub"):
            preset(PRIVATE + more)
    assert not (tmp_path / "out" / "card.toml").exists()
