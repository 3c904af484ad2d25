"""Several steps of a critic for each of a generator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tdbg.modes import TRAIN
from tdbg.trial import create_trial
from torch_helpers import make_hook

pytestmark = pytest.mark.torch
CRITIC = 3


def test_each_step_of_a_critic_has_its_own_gradients(run_dir: Path) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))
    of_generator = torch.optim.SGD(generator.parameters(), 0.01)
    of_critic = torch.optim.SGD(critic.parameters(), 0.01)
    model = nn.ModuleDict({"generator": generator, "critic": critic})
    hook = make_hook(run_dir, include_collections=["gradients"])
    hook.register_module(generator)
    hook.register_module(critic)
    expected: dict[str, list[torch.Tensor]] = {"generator": [], "critic": []}

    def step(name: str, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        model.zero_grad()
        loss.backward()
        weight = next(model[name].parameters())
        assert weight.grad is not None
        expected[name].append(weight.grad.clone())
        optimizer.step()

    for _ in range(4):
        for _ in range(CRITIC):
            made = critic(generator(torch.randn(5, 2)).square())
            real = critic(torch.randn(5, 3).square())
            step("critic", of_critic, made.tanh().mean() - real.tanh().mean())
        made = critic(generator(torch.randn(5, 2)).square())
        step("generator", of_generator, -made.tanh().mean())
    hook.close()
    trial = create_trial(run_dir)
    gradient = trial.tensor("gradient/Sequential.0.weight")
    critic_steps = gradient.steps(mode=TRAIN)
    assert len(critic_steps) == 4 * CRITIC
    for each, true in zip(critic_steps, expected["critic"], strict=True):
        torch.testing.assert_close(torch.tensor(gradient.value(each)), true)
    gradient = trial.tensor("gradient/weight")
    found = [torch.tensor(gradient.value(i)) for i in gradient.steps(mode=TRAIN)]
    for true in expected["generator"]:
        assert any(torch.allclose(each, true) for each in found)
