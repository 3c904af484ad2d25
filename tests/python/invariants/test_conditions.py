"""``tdbg.invariants``: ready-made conditions, for tensors of any library."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tdbg.errors import ConfigurationError
from tdbg.invariants import (
    finite,
    moves_slower_than,
    same_tensor,
    sums_to,
    unchanged,
)

Make = Callable[[Any], Any]
LIBRARIES: list[Make] = [
    lambda values: np.array(values, np.float32),
    lambda values: torch.tensor(values, dtype=torch.float32),
    lambda values: torch.tensor(values, dtype=torch.bfloat16),
]
every_library = pytest.mark.parametrize("make", LIBRARIES, ids=["numpy", "f32", "bf16"])


@every_library
def test_tensors_that_share_memory_are_the_same(make: Make):
    tensor = make([1.0, 2.0])
    assert same_tensor(tensor, tensor)() == (True, "")
    assert same_tensor(tensor, tensor[:])() == (True, "")
    holds, said = same_tensor(tensor, make([1.0, 2.0]))()
    assert not holds
    assert said == "The tensors are equal, but do not share their memory."
    assert same_tensor(tensor, make([1.0, 2.0]), values=True)()[0]
    assert (
        "differ by up to 1" in same_tensor(tensor, make([1.0, 3.0]), values=True)()[1]
    )
    assert "shapes (2,) and (1,)" in same_tensor(tensor, make([1.0]))()[1]


def test_parts_of_one_memory_are_not_the_same_tensor():
    for whole in (np.zeros((2, 2)), torch.zeros(2, 2)):
        assert not same_tensor(whole[0], whole[1])()[0]
        assert not same_tensor(whole[0], whole[:, 0])()[0]


def test_a_tie_that_is_lost_later_is_seen_through_functions():
    model = torch.nn.ModuleList([torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4)])
    model[1].weight = model[0].weight
    tied = same_tensor(lambda: model[0].weight, lambda: model[1].weight)
    assert tied()[0]
    model[1].weight = torch.nn.Parameter(model[1].weight.detach().clone())
    assert not tied()[0]


@every_library
def test_a_change_is_named_and_an_equal_value_is_none(make: Make):
    held = {"a": make([1.0, 2.0]), "b": [make([3.0])]}
    frozen = unchanged(held)
    assert frozen()[0]
    held["a"][0] = 1.0
    assert frozen()[0]
    held["b"][0][0] = 4.0
    assert frozen() == (False, "1 of 2 tensors changed, the first of them b.0.")


def test_parameters_and_buffers_of_a_module_are_watched():
    module = torch.nn.BatchNorm1d(2)
    frozen = unchanged(module)
    assert frozen()[0]
    module(torch.randn(4, 2))
    assert "running_mean" in frozen()[1]


def test_a_tensor_that_is_gone_has_changed():
    held = {"a": np.ones(1), "b": np.ones(1)}
    frozen = unchanged(held)
    frozen()
    del held["a"]
    assert not frozen()[0]


def follow(update: Callable[[Any, Any, int], None], *, steps: int = 60) -> bool:
    """Whether a target that is updated so moves slower, at each of many steps."""
    torch.manual_seed(0)
    online = torch.nn.Linear(4, 4)
    target = copy.deepcopy(online)
    slower = moves_slower_than(target, online)
    for step in range(steps):
        if not slower()[0]:
            return False
        with torch.no_grad():
            for each in online.parameters():
                each.sub_(0.1 * torch.randn_like(each))
            update(target, online, step)
    return slower()[0]


def average(target: Any, online: Any, _step: int, *, rate: float = 0.05) -> None:
    for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
        mine.lerp_(theirs, rate)


def copied(target: Any, online: Any, step: int) -> None:
    if step % 10 == 9:
        target.load_state_dict(online.state_dict())


def trained(target: Any, _online: Any, _step: int) -> None:
    for mine in target.parameters():
        mine.sub_(0.3 * torch.randn_like(mine))


def test_targets_that_are_averaged_copied_or_still_move_slower():
    assert follow(average)
    assert follow(copied)
    assert follow(lambda *_: None)


def test_a_target_that_is_trained_or_follows_at_once_does_not():
    assert not follow(trained)
    assert not follow(lambda target, online, _: average(target, online, 0, rate=1.0))


def test_a_target_that_begins_elsewhere_may_come_nearer():
    online, target = np.zeros(4), np.full(4, 5.0)
    slower = moves_slower_than(target, online)
    for _ in range(30):
        assert slower()[0]
        online += 0.01
        target += 0.2 * (online - target)


@every_library
def test_what_is_not_finite_is_named(make: Make):
    held = {"a": make([1.0, 2.0]), "b": make([1.0, float("inf")])}
    assert finite(held["a"])()[0]
    assert finite(held)() == (False, "b has elements that are not finite: 1 of 2.")


@every_library
def test_sums_along_an_axis_or_of_all_are_compared(make: Make):
    shares = make([[0.5, 0.5], [0.25, 0.75]])
    assert sums_to(shares, 1)()[0]
    assert sums_to(shares, 2, axis=None)()[0]
    assert sums_to(shares, 1, axis=0)() == (False, "A sum is 0.75 and not 1.")
    assert not sums_to(make([float("nan"), 1.0]), 1)()[0]


def test_what_holds_no_tensors_is_refused_when_it_is_checked():
    with pytest.raises(ConfigurationError, match="int is no tensor"):
        unchanged(3)()


def test_conditions_import_no_framework():
    program = (
        "import sys, tdbg; tdbg.invariants.unchanged\n"
        "print({'torch', 'jax', 'tensorflow', 'mxnet'} & set(sys.modules))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "set()"
