"""LossTermMisuse, on agents: what is clipped, its sign, and what values learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import LossTermMisuse
from tdbg.run.findings import Finding, Severity

Program = Callable[[td.Hook], None]


class Agent(nn.Module):
    """A policy over three choices, or three numbers, and the value of a state."""

    def __init__(self, *, of_numbers: bool = False) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.of_numbers = of_numbers

    def forward(self, states: Tensor) -> tuple[Categorical | Normal, Tensor]:
        told, value = self.actor(states), self.critic(states)[:, 0]
        return Normal(told, 0.5) if self.of_numbers else Categorical(logits=told), value

    def log_prob(self, told: Categorical | Normal, actions: Tensor) -> Tensor:
        found: Tensor = told.log_prob(actions)  # type: ignore[no-untyped-call]
        return found.sum(1) if self.of_numbers else found


def learn(hook: td.Hook, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    hook.save_scalar("loss", float(loss.detach()))


def smaller_of_both(ratio: Tensor, gain: Tensor) -> Tensor:
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def larger_of_negatives(ratio: Tensor, gain: Tensor) -> Tensor:
    return torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()


def clipped_twice(ratio: Tensor, gain: Tensor) -> Tensor:
    """PPO with a second bound, for bad choices."""
    least = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    return -torch.where(gain < 0, torch.max(least, 3 * gain), least).mean()


def larger_of_both(ratio: Tensor, gain: Tensor) -> Tensor:
    return -torch.max(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def smaller_of_negatives(ratio: Tensor, gain: Tensor) -> Tensor:
    return torch.min(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()


def around_zero(ratio: Tensor, gain: Tensor) -> Tensor:
    return -torch.min(ratio * gain, ratio.clamp(-0.2, 0.2) * gain).mean()


def clipped_alone(ratio: Tensor, gain: Tensor) -> Tensor:
    """Without a minimum, as some write it."""
    return -(torch.clamp(ratio, 0.8, 1.2) * gain).mean()


def bounded_by(ratio: Tensor, gain: Tensor) -> Tensor:
    """V-trace bounds a ratio from above, and another one from both sides."""
    return -(ratio.clamp(max=1.0) * ratio.clamp(0.0, 1.0) * gain).mean()


def without_minus(ratio: Tensor, gain: Tensor) -> Tensor:
    return torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def plus_for_minus(ratio: Tensor, gain: Tensor) -> Tensor:
    return torch.max(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()


def proximal(
    of_policy: Callable[[Tensor, Tensor], Tensor],
    *,
    of_numbers: bool = False,
    standardizes: bool = True,
    learns_values: bool = False,
    bonus: float = 0.01,
    compare: Callable[[Tensor, Tensor], Tensor] = lambda new, old: (new - old).exp(),
) -> Program:
    """PPO: six rollouts, three epochs over each in two parts."""

    def program(hook: td.Hook) -> None:
        agent = Agent(of_numbers=of_numbers)
        optimizer = torch.optim.Adam(agent.parameters(), 1e-2)
        hook.register_module(agent)
        for _ in range(6):
            states = torch.randn(64, 4)
            with torch.no_grad():
                told, values = agent(states)
                actions = told.sample()
                old = agent.log_prob(told, actions)
            rewards = states[:, 0] * actions.reshape(64, -1)[:, 0]
            returns = rewards + 0.5 * torch.randn(64)
            advantages = returns - values
            for _ in range(3):
                for rows in torch.randperm(64).chunk(2):
                    told, new_values = agent(states[rows])
                    ratio = compare(agent.log_prob(told, actions[rows]), old[rows])
                    gain = advantages[rows]
                    if standardizes:
                        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                    targets = (values if learns_values else returns)[rows]
                    error = functional.mse_loss(new_values, targets)
                    loss = of_policy(ratio, gain) + 0.5 * error
                    learn(hook, optimizer, loss - bonus * told.entropy().mean())

    return program


def reinforce(sign: float, *, is_list: bool, standardizes: bool = True) -> Program:
    """Episodes of twelve steps, without a critic."""

    def program(hook: td.Hook) -> None:
        policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
        hook.register_module(policy)
        for _ in range(12):
            log_probs, rewards = [], []
            for state in torch.randn(12, 1, 4):
                told = Categorical(logits=policy(state))
                action = told.sample()  # type: ignore[no-untyped-call]
                log = told.log_prob(action)  # type: ignore[no-untyped-call]
                log_probs.append(log)
                rewards.append(float(state[0, 0] * (action - 1) + 1))
            total, found = 0.0, list[float]()
            for reward in reversed(rewards):
                total = reward + 0.9 * total
                found.insert(0, total)
            returns = torch.tensor(found)
            if standardizes:
                returns = (returns - returns.mean()) / (returns.std() + 1e-6)
            terms = [
                sign * log * gain for log, gain in zip(log_probs, returns, strict=True)
            ]
            if is_list:
                loss = torch.cat(terms).sum()
            else:
                loss = sign * (torch.cat(log_probs) * returns).sum()
            learn(hook, optimizer, loss)

    return program


def actor_critic(
    of_policy: Callable[[Tensor, Tensor], Tensor], *, maximizes: bool = False
) -> Program:
    def program(hook: td.Hook) -> None:
        agent = Agent()
        optimizer = torch.optim.Adam(agent.parameters(), 1e-2, maximize=maximizes)
        hook.register_module(agent)
        for _ in range(12):
            states = torch.randn(32, 4)
            told, values = agent(states)
            actions = told.sample()
            rewards = states[:, 0] * (actions == 1) + torch.randn(32)
            advantages = rewards - values
            log_probs = told.log_prob(actions)
            loss = of_policy(log_probs, advantages.detach())
            loss = loss + 0.5 * advantages.pow(2).mean()
            learn(hook, optimizer, -loss if maximizes else loss)

    return program


def routes(hook: td.Hook) -> None:
    """What is learned are costs, which are to be small."""
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), 1e-2)
    hook.register_module(agent)
    for _ in range(12):
        states = torch.randn(32, 4)
        told, baseline = agent(states)
        actions = told.sample()
        cost = states[:, 0] * (actions == 1) + torch.randn(32)
        likelihood = told.log_prob(actions)
        loss = ((cost - baseline.detach()) * likelihood).mean()
        learn(hook, optimizer, loss + functional.mse_loss(baseline, cost))


def judged(run_dir: Path, program: Program) -> list[Finding]:
    torch.manual_seed(0)
    rules = [LossTermMisuse()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        program(hook)
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (proximal(larger_of_both), "wrong one of its two parts"),
        (proximal(smaller_of_negatives), "wrong one of its two parts"),
        (proximal(larger_of_both, of_numbers=True), "wrong one of its two parts"),
        (proximal(without_minus), "policy loss has the wrong sign"),
        (proximal(plus_for_minus), "policy loss has the wrong sign"),
        (proximal(plus_for_minus, of_numbers=True), "policy loss has the wrong sign"),
        (proximal(smaller_of_both, learns_values=True), "is exactly 0"),
        (proximal(larger_of_negatives, bonus=-0.01), "entropy bonus has the wrong"),
        (proximal(around_zero), "to -0.2 to 0.2, which leaves out 1"),
        (
            proximal(smaller_of_both, compare=lambda new, old: new / old),
            "divides or subtracts their logarithms",
        ),
        (
            proximal(smaller_of_both, compare=lambda new, old: new - old),
            "divides or subtracts their logarithms",
        ),
        (reinforce(1.0, is_list=True), "policy loss has the wrong sign"),
        (reinforce(1.0, is_list=False), "policy loss has the wrong sign"),
        (actor_critic(lambda log, gain: (log * gain).mean()), "of the values minus"),
    ],
    ids=[
        "larger", "smaller of negatives", "larger, of numbers", "no minus", "plus",
        "plus, of numbers", "values", "entropy", "around zero", "quotient",
        "difference", "list", "vector", "actor and critic",
    ],
)  # fmt: skip
def test_a_loss_of_an_agent_that_is_wrong(
    run_dir: Path, program: Program, said: str
) -> None:
    (finding,) = judged(run_dir, program)
    assert finding.severity is Severity.WARNING
    assert said in finding.message


@pytest.mark.parametrize(
    "program",
    [
        proximal(smaller_of_both),
        proximal(larger_of_negatives, standardizes=False),
        proximal(clipped_twice),
        proximal(clipped_alone),
        proximal(bounded_by),
        proximal(
            smaller_of_both, compare=lambda new, old: new.exp() / old.exp()
        ),
        proximal(smaller_of_both, of_numbers=True),
        reinforce(-1.0, is_list=True),
        reinforce(-1.0, is_list=False, standardizes=False),
        actor_critic(lambda log, gain: -(log * gain).mean()),
        actor_critic(lambda log, gain: ((-log) * gain).mean()),
        actor_critic(lambda log, gain: -(log * gain).mean(), maximizes=True),
        routes,
    ],
    ids=[
        "smaller", "larger of negatives", "clipped twice", "clipped alone",
        "bounded", "quotient of chances", "of numbers", "list",
        "vector", "actor and critic", "negative logarithm", "maximized", "costs",
    ],
)  # fmt: skip
def test_a_loss_of_an_agent_as_it_should_be(run_dir: Path, program: Program) -> None:
    assert judged(run_dir, program) == []
