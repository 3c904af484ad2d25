"""LossTermMisuse: losses that have one sample of a batch, and the others not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.losses.loss_targets import faults_of_samples

N = 16


def batch() -> tuple[Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return model(torch.randn(N, 4)), torch.randint(0, 3, (N,))


def seen(loss: Tensor) -> list[str]:
    return [words["samples"] for _, _, words in faults_of_samples(Graph(loss))]


def test_a_loop_that_replaces_the_loss() -> None:
    outputs, labels = batch()
    for i in range(N):
        loss = functional.cross_entropy(outputs[i], labels[i])
    assert seen(loss) == ["16"]


def test_a_loop_over_pairs_that_replaces_the_loss() -> None:
    outputs, labels = batch()
    for output, label in zip(outputs, labels, strict=True):
        loss = functional.cross_entropy(output, label) / N
    assert seen(loss) == ["16"]


def test_a_loop_over_numbers_that_replaces_the_loss() -> None:
    outputs, targets = batch()[0], torch.randn(N, 3)
    for i in range(N):
        loss = functional.mse_loss(outputs[i], targets[i])
    assert seen(loss) == ["16"]


def test_a_loop_that_adds_up() -> None:
    outputs, labels = batch()
    loss = torch.zeros(())
    for i in range(N):
        loss = loss + functional.cross_entropy(outputs[i], labels[i]) / N
    assert seen(loss) == []


def test_a_batch_as_it_is() -> None:
    outputs, labels = batch()
    assert seen(functional.cross_entropy(outputs, labels)) == []


def test_one_sample_at_a_time() -> None:
    model, labels = nn.Linear(4, 3), torch.randint(0, 3, (N,))
    for i in range(N):
        loss = functional.cross_entropy(model(torch.randn(4)), labels[i])
    assert seen(loss) == []


def test_the_last_place_of_one_sequence() -> None:
    layer, last = nn.GRU(4, 8), nn.Linear(8, 3)
    outputs = last(layer(torch.randn(N, 4))[0])
    labels = torch.randint(0, 3, (N,))
    assert seen(functional.cross_entropy(outputs[-1], labels[-1])) == []
