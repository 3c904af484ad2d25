"""ModelCopies, on targets of agents: whether they are asked, and about what."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import ModelCopies
from tdbg.run.findings import Finding, Severity

N_STEPS, N = 220, 16
Next = Callable[["Agent", Tensor, Tensor], Tensor]


class Agent:
    """A network of values and the target that follows it."""

    def __init__(self, *, has_target: bool = True) -> None:
        layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        self.q_net = layers
        self.target_net = copy.deepcopy(layers) if has_target else layers
        self.optimizer = torch.optim.Adam(self.q_net.parameters(), 1e-3)

    def update(self, after: Next, begin: Callable[[int], None], step: int) -> None:
        obs = torch.randn(N, 4)
        next_obs = obs + 0.1 * torch.randn(N, 4)
        actions, rewards = torch.randint(3, (N, 1)), obs[:, :1]
        begin(step)
        with torch.no_grad():
            targets = rewards + 0.9 * after(self, obs, next_obs)
        values = self.q_net(obs).gather(1, actions)
        loss = functional.mse_loss(values, targets)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if step % 20 == 19:
            self.target_net.load_state_dict(self.q_net.state_dict())


def judged(
    run_dir: Path, after: Next, begin: Callable[[int], None] = lambda _: None
) -> list[Finding]:
    torch.manual_seed(0)
    agent, rules = Agent(), [ModelCopies()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(agent.q_net)
        for step in range(N_STEPS):
            agent.update(after, begin, step)
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules, record=False).findings)


def of_present(agent: Agent, obs: Tensor, next_obs: Tensor) -> Tensor:
    del next_obs
    found: Tensor = agent.target_net(obs)
    return found.amax(1, keepdim=True)


def of_what_comes(agent: Agent, obs: Tensor, next_obs: Tensor) -> Tensor:
    del obs
    found: Tensor = agent.target_net(next_obs)
    return found.amax(1, keepdim=True)


def by_parts(agent: Agent, obs: Tensor, next_obs: Tensor) -> Tensor:
    """The target is never called as a whole."""
    del obs
    for layer in agent.target_net:
        next_obs = layer(next_obs)
    return next_obs.amax(1, keepdim=True)


def of_network(agent: Agent, obs: Tensor, next_obs: Tensor) -> Tensor:
    del obs
    found: Tensor = agent.q_net(next_obs)
    return found.amax(1, keepdim=True)


def of_both(agent: Agent, obs: Tensor, next_obs: Tensor) -> Tensor:
    """An advantage is learned, too."""
    gap = agent.target_net(obs).amax(1, keepdim=True)
    found: Tensor = agent.target_net(next_obs).amax(1, keepdim=True)
    return found - 0.1 * gap


def of_concatenated(agent: Agent, obs: Tensor, next_obs: Tensor) -> Tensor:
    found: Tensor = agent.target_net(torch.cat([obs, next_obs]))
    return found[len(obs) :].amax(1, keepdim=True)


def test_a_target_that_is_asked_about_the_present(run_dir: Path) -> None:
    (finding,) = judged(run_dir, of_present)
    assert finding.severity is Severity.WARNING
    assert "target_net (Sequential) is asked about obs, and never" in finding.message
    assert "target_net(next_obs)" in finding.advice


def test_a_target_that_is_updated_and_never_asked(run_dir: Path) -> None:
    (finding,) = judged(run_dir, of_network)
    assert finding.severity is Severity.WARNING
    assert "updates the target network target_net (Sequential), but" in finding.message


@pytest.mark.parametrize("after", [of_what_comes, by_parts, of_both, of_concatenated])
def test_targets_that_are_asked_as_they_should_be(run_dir: Path, after: Next) -> None:
    assert judged(run_dir, after) == []


def test_a_target_that_is_asked_about_what_comes_in_the_end(run_dir: Path) -> None:
    """Some calls are about the present: those of the first steps."""
    steps = [0]

    def after(agent: Agent, obs: Tensor, next_obs: Tensor) -> Tensor:
        steps[0] += 1
        of = of_present if steps[0] % 7 else of_what_comes
        return of(agent, obs, next_obs)

    assert judged(run_dir, after) == []
