"""LAMB against NumPy, one tensor at a time."""

import numpy as np
import pytest
import torch

from retrievers.training.engine.lamb import Lamb

SHAPES = {"matrix": (4, 3), "long": (60, 60), "vector": (5,), "zero": (2,)}


def by_hand(start, gradients, lr, eps, decay):
    """The paper's algorithm, its norm bounded by 10 and its means not corrected."""
    weight, mean, square = start, np.zeros_like(start), np.zeros_like(start)
    for gradient in gradients:
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        update = mean / (np.sqrt(square) + eps) + decay * weight
        length, step = min(np.linalg.norm(weight), 10.0), np.linalg.norm(update)
        weight = weight - lr * (length / step if length and step else 1.0) * update
    return weight


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_the_algorithm(decay):
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        start = np.zeros(shape) if name == "zero" else rng.normal(size=shape)
        gradients = [rng.normal(size=shape) for _ in range(5)]
        weight = torch.nn.Parameter(torch.tensor(start))
        optimizer = Lamb([weight], lr=0.1, weight_decay=decay)
        for gradient in gradients:
            weight.grad = torch.tensor(gradient)
            optimizer.step()
        expected = by_hand(start, gradients, 0.1, 1e-8, decay)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-10)
    assert np.linalg.norm(rng.normal(size=SHAPES["long"])) > 10  # the bound is tried


def test_a_tensor_without_a_gradient_stays_and_one_with_zeros_too():
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    weights[0].grad = torch.zeros(3)
    Lamb(weights, lr=0.1).step()
    assert all(torch.equal(weight, torch.ones(3)) for weight in weights)
