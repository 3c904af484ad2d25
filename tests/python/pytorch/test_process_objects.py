"""Optimizers and schedules are found among all objects, in one pass."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler, StepLR

from tdbg.hooks.pytorch.model.process_objects import living, schedules_of


@pytest.fixture
def passes(monkeypatch: Any) -> list[int]:
    """Counts passes over all objects."""
    made: list[int] = []
    every = gc.get_objects

    def counted(generation: int | None = None) -> list[Any]:
        if generation is None:
            made.append(1)
        return every(generation)

    gc.collect()
    monkeypatch.setattr(gc, "get_objects", counted)
    return made


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)


def test_the_pass_that_finds_an_optimizer_finds_its_schedules(
    passes: list[int],
) -> None:
    ours, others = optimizer(), optimizer()
    schedules: list[LRScheduler] = [StepLR(ours, 3), StepLR(ours, 5)]
    other = StepLR(others, 2)
    found = living(torch.optim.Optimizer)
    assert {id(ours), id(others)} <= set(map(id, found))
    assert not any(isinstance(each, LRScheduler) for each in found)
    assert set(map(id, schedules_of(ours))) == set(map(id, schedules))
    assert schedules_of(others) == [other]
    assert len(passes) == 1


def test_a_schedule_that_came_later_is_found(passes: list[int]) -> None:
    ours = optimizer()
    living(torch.optim.Optimizer)
    schedule = StepLR(ours, 3)
    assert schedules_of(ours) == [schedule]
    assert len(passes) == 1, "it is looked for among the young objects"


def test_after_a_collection_all_objects_are_looked_at(passes: list[int]) -> None:
    ours = optimizer()
    living(torch.optim.Optimizer)
    schedule = StepLR(ours, 3)
    gc.collect()
    assert living(LRScheduler).count(schedule) == 1
    assert len(passes) == 2
