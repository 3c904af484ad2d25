"""Programs that call ``forward()`` of a model themselves, and many backward passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tdbg.launch.discovery import Discovery
from tdbg.modes import TRAIN
from tdbg.pytorch import create_trial
from torch_helpers import digits

pytestmark = pytest.mark.torch


class Network(nn.Module):
    """The values of two actions, as scripts of reinforcement learning have them."""

    def __init__(self, n_inputs: int = 4) -> None:
        super().__init__()
        self.fc1 = nn.Linear(n_inputs, 16)
        self.fc2 = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.fc2(functional.relu(self.fc1(x)))
        return values

    def act(self, x: torch.Tensor) -> int:
        return int(self.forward(x).argmax())


def names_of(run_dir: Path, discovery: Discovery) -> set[str]:
    for hook in discovery.hooks:
        hook.close()
    trial = create_trial(run_dir)
    return set(trial.tensor_names(collection="weights"))


def test_a_model_whose_forward_is_called_by_itself_is_the_root_and_not_its_layers(
    run_dir: Path, discovery: Discovery
) -> None:
    torch.manual_seed(0)
    model = Network(64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _, (inputs, labels) in zip(range(20), digits(8), strict=False):
        optimizer.zero_grad()
        functional.cross_entropy(model.forward(inputs), labels % 2).backward()
        optimizer.step()
    assert names_of(run_dir, discovery) == {"fc1.weight", "fc2.weight"}
    trial = create_trial(run_dir)
    assert trial.tensor("Network_output_0").steps(TRAIN) == list(range(1, 20))
    assert len(trial.tensor("gradient/fc1.weight").steps(TRAIN)) == 20
    discovery.stop()
    assert "forward" not in vars(model)


def test_a_model_that_acts_by_its_forward_before_it_learns_is_the_root(
    run_dir: Path, discovery: Discovery
) -> None:
    torch.manual_seed(0)
    model, target = Network(), Network()
    target.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(120):
        state = torch.randn(4)
        model.act(state)
        states = torch.randn(32, 4)
        # Gradients reach the target network, too, as nobody detaches it.
        wanted = 1.0 + 0.9 * target(states).max(1)[0]
        loss = functional.smooth_l1_loss(model(states).max(1)[0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            target.load_state_dict(model.state_dict())
    assert names_of(run_dir, discovery) == {"fc1.weight", "fc2.weight"}
    info = create_trial(run_dir).model_info()[-1]
    assert info.makes_targets
    assert info.untrained == ()


class ActorCritic(nn.Module):
    """A model without a forward: its methods call its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.heads = nn.ModuleDict(
            {"actor": nn.Linear(16, 2), "critic": nn.Linear(16, 1)}
        )

    def actor(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.heads["actor"](functional.relu(self.body(x)))
        return scores

    def critic(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.heads["critic"](functional.relu(self.body(x)))
        return value


def test_layers_that_methods_of_a_model_call_have_their_names_in_the_model(
    run_dir: Path, discovery: Discovery
) -> None:
    torch.manual_seed(0)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(4):
        x = torch.randn(8, 4)
        loss = model.critic(x).square().mean() - model.actor(x).log_softmax(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert names_of(run_dir, discovery) == {
        "ActorCritic.body.weight",
        "ActorCritic.heads.actor.weight",
        "ActorCritic.heads.critic.weight",
    }


def test_many_backward_passes_behind_many_forwards_are_no_other_model(
    discovery: Discovery, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of REINFORCE: a pass for each step of an episode, and then an update."""
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(6):
        chosen = [model(torch.randn(4)).log_softmax(0)[0] for _ in range(20)]
        optimizer.zero_grad()
        for each in chosen:
            (-each * 0.5).backward()
        optimizer.step()
    discovery.print_summary()
    assert "backward passes followed no" not in capsys.readouterr().err


def test_backward_passes_of_another_model_are_told(
    discovery: Discovery, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    weight = torch.randn(4, requires_grad=True)
    for _ in range(20):
        (weight * torch.randn(4)).sum().backward()
    discovery.print_summary()
    assert "20 of 23 backward passes followed no" in capsys.readouterr().err
