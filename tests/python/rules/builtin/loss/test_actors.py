"""LossTermMisuse, on actors that follow the gradient of a critic's values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import LossTermMisuse
from tdbg.run.findings import Finding, Severity

Program = Callable[[td.Hook], None]
N = 64


class Actor(nn.Module):
    """An action, and the logarithm of its density."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
        self.mean, self.scale = nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        inside = self.body(state)
        told = Normal(self.mean(inside), self.scale(inside).clamp(-4, 1).exp())
        drawn = told.rsample()
        action = torch.tanh(drawn)
        log_prob = told.log_prob(drawn) - torch.log(1 - action.pow(2) + 1e-6)  # type: ignore[no-untyped-call]
        return action, log_prob


class Critic(nn.Module):
    """The value of an action."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        found: Tensor = self.net(torch.cat([state, action], 1))
        return found


def sign(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda value, _: factor * value.mean()


def soft(of_value: float, of_density: float) -> Callable[[Tensor, Tensor], Tensor]:
    alpha = torch.tensor(0.2)
    return lambda value, density: (
        of_density * alpha * density + of_value * value
    ).mean()


def trained(
    of_actor: Callable[[Tensor, Tensor], Tensor],
    *,
    by_hand: bool = False,
    as_costs: bool = False,
    twice: bool = False,
    joint: bool = False,
    maximizes: bool = False,
) -> Program:
    """An actor and one critic, or two, in turns."""

    def program(hook: td.Hook) -> None:
        actor, critics = Actor(), nn.ModuleList(Critic() for _ in range(1 + twice))
        hook.register_module(actor, name="actor")
        hook.register_module(critics, name="critics")
        of_critics = torch.optim.Adam(critics.parameters(), 1e-3)
        learned = [*actor.parameters(), *(critics.parameters() if joint else ())]
        of_policy = torch.optim.Adam(learned, 1e-3, maximize=maximizes)
        for _ in range(16):
            states, actions = torch.randn(N, 4), torch.rand(N, 1) * 2 - 1
            rewards = -(actions - states[:, :1]).pow(2)
            if as_costs:
                costs = -rewards
                rewards = 1.0 * costs
            with torch.no_grad():
                later, _ = actor(states + 0.1)
                ahead = torch.stack([each(states + 0.1, later) for each in critics])
                target = rewards + 0.9 * ahead.amin(0)
            values = [each(states, actions) for each in critics]
            if by_hand:
                loss = torch.stack([((v - target) ** 2).mean() for v in values]).sum()
            else:
                parts = [functional.mse_loss(v, target) for v in values]
                loss = torch.stack(parts).sum()
            learn(hook, of_critics, loss)
            action, density = actor(states)
            value = critics[0](states, action)
            if twice:
                value = torch.min(value, critics[1](states, action))
            learn(hook, of_policy, of_actor(value, density))

    return program


def learn(hook: td.Hook, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    hook.save_scalar("loss", float(loss.detach()))


def judged(run_dir: Path, program: Program) -> list[Finding]:
    torch.manual_seed(0)
    rules = [LossTermMisuse()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        program(hook)
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


SICK = {
    "no minus": (trained(sign(1.0)), "loss of the actor has the wrong sign"),
    "by hand": (trained(sign(1.0), by_hand=True), "loss of the actor has the wrong"),
    "soft": (trained(soft(1.0, 1.0), twice=True), "So the actor learns the worst"),
    "entropy": (trained(soft(-1.0, -1.0), twice=True), "entropy bonus has the wrong"),
}


@pytest.mark.parametrize("name", SICK)
def test_actors_that_follow_the_wrong_way(run_dir: Path, name: str) -> None:
    program, said = SICK[name]
    (finding,) = judged(run_dir, program)
    assert finding.severity is Severity.WARNING
    assert said in finding.message


HEALTHY = {
    "minus": trained(sign(-1.0)),
    "minus, by hand": trained(sign(-1.0), by_hand=True),
    "soft": trained(soft(-1.0, 1.0), twice=True),
    "minus, of a tensor": trained(lambda value, _: (torch.tensor(-1.0) * value).sum()),
    "maximized": trained(sign(1.0), maximizes=True),
    "costs": trained(sign(1.0), as_costs=True),
    # A critic that is to find values of the actor's own actions too large.
    "conservative": trained(sign(1.0), joint=True),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_actors_that_follow_as_they_should(run_dir: Path, name: str) -> None:
    assert judged(run_dir, HEALTHY[name]) == []
