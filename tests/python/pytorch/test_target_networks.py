"""Copies of a model that make its targets are seen, and others are not."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import tdbg.pytorch as td
from tdbg.trial import create_trial

pytestmark = pytest.mark.torch

N = 32


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


class Policy(nn.Module):
    """Has both networks, as those of libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = network(), network()
        self.target.load_state_dict(self.online.state_dict())

    def forward(self, state: Tensor) -> Tensor:
        values: Tensor = self.online(state)
        return values


def learn(
    run_dir: Path,
    model: nn.Module,
    trained: nn.Module,
    targets: Callable[[Tensor], Tensor],
    after: Callable[[int], object] = lambda _: None,
    n_steps: int = 40,
) -> bool:
    """Learn targets of each batch; return whether the model is said to make them."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(trained.parameters(), 1e-3)
    with td.watch(model, out=run_dir, budget="off") as hook:
        for step in range(n_steps):
            state = torch.randn(N, 4)
            with torch.no_grad():
                target = targets(state)
            loss = F.smooth_l1_loss(model(state), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after(step)
        assert hook.counters()["internal_errors"] == 0
    return create_trial(run_dir).model_info()[-1].makes_targets


def test_a_copy_that_is_called_from_step_to_step_makes_targets(run_dir: Path):
    model = network()
    target = copy.deepcopy(model)
    assert learn(run_dir, model, model, lambda state: 1 + 0.9 * target(state))
    assert not target._forward_pre_hooks


def test_a_copy_beside_the_network_in_one_model_makes_targets(run_dir: Path):
    policy = Policy()
    assert learn(
        run_dir, policy, policy.online, lambda state: 1 + 0.9 * policy.target(state)
    )


@pytest.mark.parametrize("goes_on", [True, False])
def test_values_of_later_states_make_targets(run_dir: Path, goes_on: bool):
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with td.watch(model, out=run_dir, budget="off"):
        for _ in range(40):
            state, next_state = torch.randn(N, 4), torch.randn(N, 4)
            reward, done = torch.randn(N), (torch.arange(N) % 8 == 0).float()
            q_value = model(state)[:, 0]
            next_q_value = model(next_state).max(1)[0]
            expected = reward + goes_on * 0.9 * next_q_value * (1 - done)
            loss = (q_value - expected.detach()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert create_trial(run_dir).model_info()[-1].makes_targets is goes_on


def test_a_teacher_and_an_average_make_none(run_dir: Path, tmp_path: Path):
    model, teacher = network(), network()
    assert not learn(run_dir, model, model, teacher)
    average = copy.deepcopy(model)

    def follow(step: int) -> None:
        pairs = zip(average.parameters(), model.parameters(), strict=True)
        for ours, theirs in pairs:
            ours.data.lerp_(theirs.data, 0.01)
        if step % 20 == 19:
            average(torch.randn(N, 4))

    assert not learn(tmp_path / "average", model, model, lambda x: x[:, :2], follow)


def test_layers_that_are_all_alike_are_no_copies(run_dir: Path):
    """New norms have the same weights, whoever made them."""
    model = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))
    frozen = nn.LayerNorm(2)
    assert not learn(run_dir, model, model, lambda state: frozen(state[:, :2]))


def test_a_copy_that_is_looked_at_is_saved_as_if_it_were_not(run_dir: Path):
    model = network()
    target = copy.deepcopy(model)
    saved = []

    def save(step: int) -> None:
        if step == 0:
            assert target._forward_pre_hooks
            buffer = io.BytesIO()
            torch.save(target, buffer)
            buffer.seek(0)
            saved.append(torch.load(buffer, weights_only=False))
            saved.append(copy.deepcopy(target))

    assert learn(run_dir, model, model, target, save)
    for each in saved:
        assert torch.equal(each(torch.ones(1, 4)).isnan(), torch.tensor([[False] * 2]))
