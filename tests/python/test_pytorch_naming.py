"""A scheme of names of another library: in place of tdbg's own, everywhere."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tdbg.capture.naming import Naming
from tdbg.capture.opening import Opening, SessionOptions
from tdbg.capture.policy import Policy
from tdbg.collections import CollectionRegistry
from tdbg.hooks.pytorch.hook import TorchHook
from torch_helpers import EVERYTHING, Recorded


class Foreign(Naming):
    """Prefixes parameters, and lets the index run."""

    name = "foreign"
    index_runs = True

    def before_parameters(self, root: str, prefix: str) -> str:
        return f"{root}_{prefix}"


class Twice(nn.Module):
    """Calls one module three times: with one tensor, two, and one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.pick = Pick()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        first: torch.Tensor = self.pick(y)
        second, third = self.pick(first + 1, first + 2)
        result: torch.Tensor = self.pick(second + third)
        return result


class Pick(nn.Module):
    """Answers what it is given."""

    def forward(self, *tensors: torch.Tensor) -> object:
        return tensors[0] if len(tensors) == 1 else tensors


def train_once(run_dir: Path, model: nn.Module, *others: nn.Module) -> Recorded:
    policy = Policy(CollectionRegistry(["all"]), EVERYTHING, naming=Foreign())
    options = SessionOptions(min_free_bytes=0)
    hook = TorchHook(lambda: Opening(run_dir, policy, options))
    hook.register_module(model)
    for other in others:
        hook.register_module(other)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        for other in others:
            loss = loss + other(torch.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
    hook.close()
    return Recorded(run_dir)


def test_parameters_and_gradients_have_the_names_of_the_scheme(run_dir: Path) -> None:
    found = train_once(run_dir, Twice())
    assert {"Twice_fc.weight", "Twice_fc.bias"} <= found.names
    assert {"gradient/Twice_fc.weight", "gradient/Twice_fc.bias"} <= found.names
    assert not any(name.startswith("fc.") for name in found.names)
    assert found.events(1)[0]["hook"]["naming"] == "foreign"


def test_a_second_root_keeps_its_own_prefix(run_dir: Path) -> None:
    found = train_once(run_dir, Twice(), Twice())
    assert {"Twice_fc.weight", "Twice_2_Twice_2.fc.weight"} <= found.names


def test_an_index_runs_over_the_calls_of_a_forward(run_dir: Path) -> None:
    found = train_once(run_dir, Twice())
    assert not any("@" in name for name in found.names)
    for direction in ("input", "output"):
        names = {name for name in found.names if f"pick_{direction}" in name}
        assert names == {f"pick_{direction}_{i}" for i in range(4)}
    # Of the plain calls the first goes another way than the others: the same names
    # must hold the same tensors in every step.
    for step in range(3):
        outputs = [found.values(f"pick_output_{i}")[step] for i in range(4)]
        assert torch.tensor(outputs[1]).equal(torch.tensor(outputs[0]) + 1)
        assert torch.tensor(outputs[2]).equal(torch.tensor(outputs[0]) + 2)
        assert torch.tensor(outputs[3]).equal(
            torch.tensor(outputs[1]) + torch.tensor(outputs[2])
        )
