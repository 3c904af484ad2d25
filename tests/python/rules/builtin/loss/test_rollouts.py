"""LossTermMisuse, on real trainings: rollouts, and the targets of two critics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn
from torch.distributions import Categorical

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding

pytestmark = pytest.mark.torch

STEPS, UPDATES = 24, 6


def judged(run_dir: Path, program: Callable[[td.Hook], None]) -> list[Finding]:
    torch.manual_seed(0)
    with td.Hook(run_dir, min_free_bytes=0) as hook:
        program(hook)
    assert hook.counters()["internal_errors"] == 0
    rules = [tdbg.rules.LossTermMisuse()]
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.pi = nn.Linear(4, 16), nn.Linear(16, 2)
        self.value = nn.Linear(16, 1)

    def forward(self, states: Tensor) -> tuple[Categorical, Tensor]:
        hidden = self.body(states).tanh()
        return Categorical(logits=self.pi(hidden)), self.value(hidden).squeeze(-1)


class Memory:
    """What people write for proximal policy optimization."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.states: list[Tensor] = []
        self.actions: list[int] = []
        self.log_probs: list[float] = []
        self.rewards: list[float] = []
        self.values: list[float] = []


def ppo(
    *, clears: bool = True, is_late: bool = True, logs: bool = False
) -> Callable[[td.Hook], None]:
    """Return a training whose memory is cleared, and whose returns come first.

    Args:
        clears: Whether old steps are forgotten.
        is_late: Whether advantages are standardized after the returns.
        logs: Whether all actions are kept for a plot, too.
    """

    def program(hook: td.Hook) -> None:
        agent, memory = Agent(), Memory()
        hook.register_module(agent)
        optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)
        all_actions: list[int] = []
        for _ in range(UPDATES):
            for _ in range(STEPS):
                state = torch.randn(4)
                with torch.no_grad():
                    policy, value = agent(state)
                action = policy.sample()
                memory.states.append(state)
                memory.actions.append(int(action))
                memory.log_probs.append(float(policy.log_prob(action)))
                memory.rewards.append(float(state[int(action)]))
                memory.values.append(float(value))
                if logs:
                    all_actions.append(int(action))
            states = torch.stack(memory.states)
            actions = torch.tensor(memory.actions)
            old = torch.tensor(memory.log_probs)
            values = torch.tensor(memory.values)
            advantages = torch.tensor(memory.rewards) - values
            returns = advantages + values
            advantages = (advantages - advantages.mean()) / advantages.std()
            if not is_late:
                returns = advantages + values
            for _ in range(2):
                policy, value = agent(states)
                ratio = (policy.log_prob(actions) - old).exp()
                gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
                loss = F.mse_loss(value, returns) - gain.mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if clears:
                memory.clear()

    return program


def test_a_memory_that_nobody_clears_is_named(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, ppo(clears=False))
    assert "never clears its rollouts" in finding.message


def test_returns_of_standardized_advantages_are_named(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, ppo(is_late=False))
    assert "`returns` are the values plus `advantages`" in finding.message


@pytest.mark.parametrize("logs", [False, True])
def test_rollouts_that_are_cleared_are_fine(tmp_path: Path, *, logs: bool) -> None:
    assert not judged(tmp_path, ppo(logs=logs))


# ---- two critics ---------------------------------------------------------------------

Choice = Callable[[Tensor, Tensor], Tensor]


def critics(take: Choice) -> Callable[[td.Hook], None]:
    def program(hook: td.Hook) -> None:
        one, two = nn.Linear(4, 1), nn.Linear(4, 1)
        hook.register_module(nn.ModuleList([one, two]))
        slow_1, slow_2 = copy.deepcopy(one), copy.deepcopy(two)
        optimizer = torch.optim.Adam([*one.parameters(), *two.parameters()])
        for _ in range(6):
            state, next_state = torch.randn(32, 4), torch.randn(32, 4)
            reward = state[:, :1]
            done = (torch.rand(32, 1) < 0.2).float()
            with torch.no_grad():
                next_q1, next_q2 = slow_1(next_state), slow_2(next_state)
                target = reward + 0.99 * (1 - done) * take(next_q1, next_q2)
            loss = F.mse_loss(one(state), target) + F.mse_loss(two(state), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return program


def test_the_larger_one_of_two_critics_is_named(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, critics(torch.max))
    assert "the larger one of two critics' values (`next_q1`" in finding.message


@pytest.mark.parametrize(
    "take", [torch.min, lambda one, _: one, lambda one, two: (one + two) / 2]
)
def test_other_targets_of_two_critics_are_fine(tmp_path: Path, take: Choice) -> None:
    assert not judged(tmp_path, critics(take))


# ---- double Q-learning ---------------------------------------------------------------


def double(*, is_exchanged: bool) -> Callable[[td.Hook], None]:
    def program(hook: td.Hook) -> None:
        q_net = nn.Linear(4, 3)
        hook.register_module(q_net)
        target_net = copy.deepcopy(q_net)
        optimizer = torch.optim.Adam(q_net.parameters())

        def exchanged(next_states: Tensor) -> Tensor:
            best = target_net(next_states).max(1)[1]
            values: Tensor = q_net(next_states).gather(1, best.unsqueeze(1))
            return values

        def right(next_states: Tensor) -> Tensor:
            best = q_net(next_states).argmax(1, keepdim=True)
            values: Tensor = target_net(next_states).gather(1, best)
            return values

        ask = exchanged if is_exchanged else right
        for _ in range(6):
            states, next_states = torch.randn(32, 4), torch.randn(32, 4)
            actions, rewards = torch.randint(3, (32, 1)), states[:, 1:2]
            with torch.no_grad():
                value = ask(next_states)
            values = q_net(states).gather(1, actions)
            loss = F.mse_loss(values, rewards + 0.9 * value)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_net.load_state_dict(q_net.state_dict())

    return program


def test_a_target_network_that_chooses_is_named(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, double(is_exchanged=True))
    assert "`target_net` chooses the next action, and `q_net`" in finding.message
    assert "best = q_net(next_states)" in (finding.advice or "")


def test_a_target_network_that_judges_is_fine(tmp_path: Path) -> None:
    assert not judged(tmp_path, double(is_exchanged=False))
