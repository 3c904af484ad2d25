"""What the checks of the first steps cost, in counts that no clock changes."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph

# Graphs of losses that are walked, calls of Python functions in the first steps, and
# those in each step later on, at most.
WALKS, CALLS, CALLS_LATER = 8, 7_000, 3
FIRST, LATER = 100, 50


def deep() -> nn.Module:
    layers = [each for _ in range(48) for each in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*layers, nn.BatchNorm1d(8), nn.Linear(8, 4))


def train(folder: Path, at: Callable[[int], None] = lambda _: None) -> None:
    """Train, and tell the number of each step that ends."""
    model, criterion = deep(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, labels = torch.randn(16, 8), torch.randint(0, 4, (16,))
    with td.Hook(folder, min_free_bytes=0, probes=False) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for step in range(FIRST + LATER):
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
            at(step + 1)
    assert hook.counters()["internal_errors"] == 0


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """A collection, which comes by chance, would have all objects looked at again."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """Counts calls of the functions of checks, and of those that pass all objects."""
    made = [0]

    def called(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if "/hooks/pytorch/checks/" in file or file.endswith("/process_objects.py"):
            made[0] += event == "call"

    sys.setprofile(called)
    yield made
    sys.setprofile(None)


@pytest.mark.usefixtures("_no_collections")
def test_one_pass_over_all_objects_does_for_all_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, every = [0], gc.get_objects

    def counted(generation: int | None = None) -> list[Any]:
        passes[0] += generation is None
        return every(generation)

    monkeypatch.setattr(gc, "get_objects", counted)
    train(tmp_path / "run")
    assert passes == [1]


def test_few_graphs_are_walked_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks, nodes = [0], vars(Graph)["_nodes"].func

    def walked(graph: Graph) -> Any:
        walks[0] += 1
        return nodes(graph)

    counted = functools.cached_property(walked)
    counted.__set_name__(Graph, "_nodes")
    monkeypatch.setattr(Graph, "_nodes", counted)
    train(tmp_path / "run")
    assert 0 < walks[0] <= WALKS


def test_checks_call_few_functions(tmp_path: Path, calls: list[int]) -> None:
    made = {}

    def at(step: int) -> None:
        made[step] = calls[0]

    train(tmp_path / "run", at)
    assert 0 < made[FIRST] <= CALLS
    assert made[FIRST + LATER] - made[FIRST] <= CALLS_LATER * LATER


def test_a_load_that_nobody_watches_calls_few_functions(calls: list[int]) -> None:
    model = deep()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    made = []
    for _ in range(10):
        before = calls[0]
        model.load_state_dict(state)
        made.append(calls[0] - before)
    assert made[0] <= 50 < len(state)
    assert made[-1] <= 20, "no load after the first ones is read"
