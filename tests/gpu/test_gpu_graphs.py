"""CUDA graphs: every replay yields the rows of its step."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from gpu_helpers import Rows, assert_row, make_hook
from torch import nn

from dtype_helpers import numpy_of


@pytest.fixture(autouse=True)
def needs_kernels(cuda: str, takes_kernels: bool) -> None:  # noqa: ARG001
    """By PyTorch's operations nothing is taken while a graph is recorded."""
    if not takes_kernels:
        pytest.skip("needs the kernels")


def test_a_training_step_that_is_replayed(tmp_path: Path, cuda: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).to(cuda)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(16, 64, device=cuda)
    collections = ["weights", "gradients", "outputs"]

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(inputs).square().mean().backward()
        optimizer.step()

    with make_hook(tmp_path, include_collections=collections) as hook:
        hook.register_module(model)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        before = []
        for _ in range(5):
            before.append(numpy_of(model[0].weight))
            inputs.copy_(torch.randn(16, 64, device=cuda))
            graph.replay()
            torch.cuda.synchronize()
        hook.flush()
        assert hook.counters()["internal_errors"] == 0
    rows = Rows(tmp_path)
    found = rows.of("0.weight")
    assert sorted(found) == list(range(8))
    for number, weight in enumerate(before):
        assert_row(found[3 + number], weight, f"replay {number}")
    outputs = rows.of("2_output_0")
    assert len({float(outputs[step]["mean"]) for step in range(3, 8)}) == 5


def test_a_graph_in_a_private_pool_and_replays_in_a_row(
    tmp_path: Path, cuda: str
) -> None:
    model = nn.Linear(32, 32, device=cuda).eval()
    inputs = torch.zeros(4, 32, device=cuda)
    with make_hook(tmp_path, include_collections=["outputs"]) as hook:
        hook.register_module(model)
        model(inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            output = model(inputs)
        expected = []
        for number in range(20):
            inputs.fill_(float(number))
            graph.replay()  # Nobody waits between them.
            expected.append(output.clone())
        hook.flush()
        assert hook.counters()["internal_errors"] == 0
    found = Rows(tmp_path).of("Linear_output_0")
    for number, each in enumerate(expected):
        assert_row(found[1 + number], numpy_of(each), f"replay {number}")


def test_a_graph_of_the_first_steps_is_recorded(tmp_path: Path, cuda: str) -> None:
    """Checks that read numbers of the first losses and layers leave it alone."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh()).to(cuda)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(2, 64, 16, device=cuda).unbind()

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.no_grad():
            average(inputs)
        nn.functional.mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    with make_hook(tmp_path, include_collections=["losses"]) as hook:
        hook.register_module(model)
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        before = numpy_of(model[0].weight)
        graph.replay()
        torch.cuda.synchronize()
        assert hook.counters()["internal_errors"] == 0
    assert (numpy_of(model[0].weight) != before).any()
