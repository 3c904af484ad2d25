"""CUDA graphs: recording passes no step, and each replay is one.

The graphs are replayed by a class that stands in for PyTorch's; the core's part is
tested with a driver that is none (capture/test_device.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.hooks.pytorch.device import cuda_graphs
from tdbg.pytorch import Hook, SaveConfig
from torch_helpers import Recorded, make_hook, mlp


class Graph:
    """Records nothing; PyTorch's methods."""

    def capture_begin(self) -> None:
        """Begin."""

    def capture_end(self) -> None:
        """End."""

    def replay(self) -> None:
        """Again."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the core is told of replays, as (graph, step)."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(cuda_graphs, "_current_stream", lambda: (0, 0))
    calls: list[Any] = []
    yield calls
    assert not hasattr(Graph.replay, "_tdbg_original"), "still wrapped"


def listen(hook: Hook, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes instead of the core."""

    class WriterProtocol:
        def __init__(self, sink: Any) -> None:
            self._sink = sink

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sink, name)

        def graph_id(self, *_: int) -> int:
            return 77

        def graph_replayed(self, graph: int, step: int, *_: int) -> bool:
            calls.append((graph, step))
            return True

    monkeypatch.setattr(hook._session, "writer", WriterProtocol(hook._session.writer))


def record(graph: Graph, function: Callable[[], Any]) -> None:
    graph.capture_begin()
    function()
    graph.capture_end()


def test_a_step_that_is_replayed_whole(
    tmp_path: Path, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(tmp_path)
    listen(hook, told, monkeypatch)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()

    step()  # Warming up: step 0.
    graph = Graph()
    record(graph, step)
    for _ in range(3):
        graph.replay()
    hook.flush()
    ended = [each[0] for each in Recorded(tmp_path).steps]
    assert ended == [0, 1, 2, 3], "a replay with its optimizer ends its step"
    step()
    hook.close()
    assert told == [(77, 1), (77, 2), (77, 3)]
    assert [each[0] for each in Recorded(tmp_path).steps] == [0, 1, 2, 3, 4]
    assert hook.counters()["internal_errors"] == 0


def test_a_forward_that_is_replayed_belongs_to_the_step_of_its_optimizer(
    tmp_path: Path, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(tmp_path)
    listen(hook, told, monkeypatch)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    graph = Graph()
    record(graph, lambda: model(torch.ones(4, 64)))
    for _ in range(2):
        graph.replay()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    hook.close()
    assert told == [(77, 0), (77, 1)]
    assert [each[:3] for each in Recorded(tmp_path).steps] == [(0, 1, 0), (1, 1, 1)]


def test_a_part_that_is_replayed_within_a_forward(
    tmp_path: Path, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(tmp_path)
    listen(hook, told, monkeypatch)
    graph = Graph()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            graph.replay()
            return x + 1.0

    model = Outer().eval()
    hook.register_module(model)
    record(graph, lambda: model.inner(torch.ones(1, 2)))
    model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    hook.close()
    assert told == [(77, 0), (77, 1)]


def test_steps_that_want_nothing_fetch_nothing(
    tmp_path: Path, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:

    schedule = SaveConfig(save_interval=100, statistics_interval=3)
    hook = make_hook(tmp_path, save_config=schedule, include_collections=["weights"])
    listen(hook, told, monkeypatch)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)

    def step() -> None:
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()

    graph = Graph()
    record(graph, step)
    for _ in range(7):
        graph.replay()
    hook.close()
    assert [step for _, step in told] == [0, 3, 6]


def test_after_close_a_replay_only_replays(
    tmp_path: Path, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(tmp_path)
    listen(hook, told, monkeypatch)
    graph = Graph()
    record(graph, lambda: None)
    hook.close()
    graph.replay()
    assert told == []


def test_every_replay_of_an_evaluation_is_a_step(
    tmp_path: Path, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(tmp_path)
    listen(hook, told, monkeypatch)
    model = mlp().eval()
    hook.register_module(model)
    graph = Graph()
    record(graph, lambda: model(torch.ones(4, 64)))
    for _ in range(3):
        graph.replay()
    hook.close()
    assert told == [(77, 0), (77, 1), (77, 2)]
