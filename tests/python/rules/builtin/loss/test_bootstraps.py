"""LossTermMisuse, on agents: values past the end of an episode, and sums of rewards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import LossTermMisuse
from tdbg.run.findings import Finding, Severity

Begin = Callable[[nn.Module], td.Hook]
Program = Callable[[Begin], None]
GAMMA = 0.9


class Batch(NamedTuple):
    """Steps of an agent."""

    state: Tensor
    action: Tensor
    reward: Tensor
    next_state: Tensor
    done: Tensor


def drawn(n: int = 64) -> Batch:
    """Steps of which one in eight ends an episode."""
    states = torch.randn(n, 4)
    done = (torch.arange(n) % 8 == 0).float()
    after = states + 0.1 * torch.randn(n, 4)
    return Batch(states, torch.randint(3, (n,)), states[:, 0] + 3 * done, after, done)


class Values:
    """Values of three choices, and the network that makes their targets."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        self.target = copy.deepcopy(self.net)

    def of(self, batch: Batch) -> Tensor:
        every: Tensor = self.net(batch.state)
        return every.gather(1, batch.action[:, None])[:, 0]

    @torch.no_grad()
    def after(self, batch: Batch) -> Tensor:
        every: Tensor = self.target(batch.next_state)
        return every.amax(1)


LossOfValues = Callable[[Values], Tensor]


def of_tuple(goes_on: Callable[[Tensor], Tensor]) -> LossOfValues:
    def loss(values: Values) -> Tensor:
        batch = drawn()
        ahead = values.after(batch)
        y = batch.reward + GAMMA * ahead * goes_on(batch.done)
        return functional.smooth_l1_loss(values.of(batch), y)

    return loss


def of_dictionary(goes_on: Callable[[Tensor], Tensor]) -> LossOfValues:
    """Double Q-learning, on columns."""

    def loss(values: Values) -> Tensor:
        seen = drawn()
        batch = {"rewards": seen.reward[:, None], "terminated": seen.done[:, None]}
        with torch.no_grad():
            best = values.net(seen.next_state).argmax(1, keepdim=True)
            next_q = values.target(seen.next_state).gather(1, best)
            target = batch["rewards"] + GAMMA * next_q * goes_on(batch["terminated"])
        return functional.mse_loss(values.of(seen)[:, None], target)

    return loss


def of_two(*, is_masked: bool) -> LossOfValues:
    """The smaller of two values, whose name the target takes."""

    def loss(values: Values) -> Tensor:
        seen = drawn()
        reward, not_done = seen.reward, 1 - seen.done
        with torch.no_grad():
            target_q1, target_q2 = values.target(seen.next_state)[:, :2].unbind(1)
            target_q = torch.min(target_q1, target_q2)
            if is_masked:
                target_q = not_done * target_q
            target_q = reward + GAMMA * target_q
        return functional.mse_loss(values.of(seen), target_q)

    return loss


def of_mask(values: Values) -> Tensor:
    """Next values only where there are next states."""
    batch = drawn()
    rewards, is_final = batch.reward, batch.done > 0
    next_values = torch.zeros(len(rewards))
    with torch.no_grad():
        next_values[~is_final] = values.after(batch)[~is_final]
    expected = next_values * GAMMA + rewards
    return functional.smooth_l1_loss(values.of(batch), expected)


def of_time_limit(values: Values) -> Tensor:
    """Episodes are cut off, and none ends."""
    batch = drawn()
    rewards, dones, terminated = batch.reward, batch.done, torch.zeros(64)
    target = rewards + GAMMA * values.after(batch) * (1 - terminated)
    return functional.mse_loss(values.of(batch), target) + 0.0 * dones.sum()


def of_bonus(values: Values) -> Tensor:
    """No next value at all: a reward, and a bonus."""
    batch = drawn()
    reward, done = batch.reward, batch.done
    bonus = batch.state[:, 1].abs() + 0.1 + 0.0 * done
    target = reward + bonus
    return functional.mse_loss(values.of(batch), target)


def learned(loss: LossOfValues) -> Program:
    def program(begin: Begin) -> None:
        values = Values()
        optimizer = torch.optim.Adam(values.net.parameters(), 1e-3)
        hook = begin(values.net)
        for _ in range(12):
            step(hook, optimizer, loss(values))

    return program


class Agent(nn.Module):
    """A policy over three choices, and the value of a state."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, states: Tensor) -> tuple[Categorical, Tensor]:
        return Categorical(logits=self.actor(states)), self.critic(states)[..., 0]


def advantages_of_rollouts(*, stops: bool, standardizes: bool = False) -> Program:
    """Generalized advantages of two environments, of which each step pays 1."""

    def program(begin: Begin) -> None:
        agent = Agent()
        optimizer = torch.optim.Adam(agent.parameters(), 1e-2)
        hook = begin(agent)
        for _ in range(8):
            states, rewards = torch.randn(32, 2, 4), torch.ones(32, 2)
            dones = (torch.arange(64) % 7 == 0).float().view(32, 2)
            told, values = agent(states)
            actions = told.sample()
            values, last = values.detach(), torch.zeros(2)
            advantages = torch.zeros(32, 2)
            for t in reversed(range(31)):
                goes_on = 1 - dones[t + 1] if stops else 1.0
                delta = rewards[t] + 0.99 * values[t + 1] * goes_on - values[t]
                advantages[t] = last = delta + 0.95 * goes_on * last
            returns = advantages + values
            if standardizes:
                advantages = (advantages - advantages.mean()) / advantages.std()
            log_probs = told.log_prob(actions)
            error = functional.mse_loss(agent(states)[1], returns)
            step(hook, optimizer, error - (log_probs * advantages).mean())

    return program


def episodes(
    sums: Callable[[list[float], list[bool]], list[float]],
    *,
    of_values: bool = False,
    is_sparse: bool = False,
    standardizes: bool = False,
) -> Program:
    """Returns of several episodes in a row, or of one that pays at its end."""

    def program(begin: Begin) -> None:
        agent = Agent()
        optimizer = torch.optim.Adam(agent.parameters(), 1e-2)
        hook = begin(agent)
        for length in range(20, 32):
            states = torch.randn(length, 4)
            rewards, dones = states[:, 0].tolist(), [i % 6 == 5 for i in range(length)]
            if is_sparse:
                rewards, dones = [0.0] * (length - 1) + [1.0], [False] * length
            returns = torch.tensor(sums(rewards, dones))
            if standardizes:
                returns = (returns - returns.mean()) / (returns.std() + 1e-7)
            told, values = agent(states)
            log_probs = told.log_prob(told.sample())
            if of_values:
                loss = functional.mse_loss(values, returns)
            else:
                loss = -(log_probs * returns).mean()
            step(hook, optimizer, loss)

    return program


def of_lists(order: Callable[[list[float]], list[float]], *, turns: bool) -> Program:
    """REINFORCE, with a list of the logarithms that one step after another has made."""

    def program(begin: Begin) -> None:
        agent = Agent()
        optimizer = torch.optim.Adam(agent.parameters(), 1e-2)
        hook = begin(agent)
        for length in range(20, 32):
            log_probs, rewards = list[Tensor](), list[float]()
            for state in torch.randn(length, 4):
                told, _ = agent(state)
                log_probs.append(told.log_prob(told.sample()))
                rewards.append(float(state[0]))
            returns = torch.tensor(order(from_the_end(rewards, [False] * length)))
            terms = torch.stack(log_probs[::-1] if turns else log_probs)
            step(hook, optimizer, -(terms * returns).mean())

    return program


def from_the_end(rewards: list[float], dones: list[bool]) -> list[float]:
    total, found = 0.0, list[float]()
    for reward, done in zip(rewards[::-1], dones[::-1], strict=True):
        total = reward + GAMMA * (0.0 if done else total)
        found.insert(0, total)
    return found


def through_ends(rewards: list[float], _: list[bool]) -> list[float]:
    return from_the_end(rewards, [False] * len(rewards))


def from_the_beginning(rewards: list[float], _: list[bool]) -> list[float]:
    return through_ends(rewards[::-1], _)[::-1]


def step(hook: td.Hook, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    hook.save_scalar("loss", float(loss.detach()))


def judged(run_dir: Path, program: Program) -> list[Finding]:
    torch.manual_seed(0)
    rules, hooks = [LossTermMisuse()], list[td.Hook]()

    def begin(model: nn.Module) -> td.Hook:
        hooks.append(td.watch(model, out=run_dir, rules=rules, min_free_bytes=0))
        return hooks[0]

    program(begin)
    assert hooks[0].counters()["internal_errors"] == 0
    hooks[0].close()
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (learned(of_tuple(torch.ones_like)), "goes on past the end of an episode"),
        (learned(of_dictionary(torch.ones_like)), "goes on past the end of an"),
        (learned(of_two(is_masked=False)), "goes on past the end of an episode"),
        (learned(of_tuple(lambda done: done)), "count the wrong way round"),
        (learned(of_dictionary(lambda done: done)), "count the wrong way round"),
        (advantages_of_rollouts(stops=False), "`advantages` go on past the end"),
        (advantages_of_rollouts(stops=False, standardizes=True), "go on past the end"),
        (episodes(through_ends), "`returns` go on past the end of an episode"),
        (episodes(through_ends, of_values=True), "`returns` go on past the end"),
        (episodes(from_the_beginning), "`returns` contain the past"),
        (episodes(from_the_beginning, of_values=True), "`returns` contain the past"),
        (episodes(from_the_beginning, is_sparse=True), "`returns` contain the past"),
        (episodes(from_the_beginning, standardizes=True), "contain the past"),
        (of_lists(lambda each: each[::-1], turns=False), "are the wrong way round"),
    ],
    ids=[
        "tuple", "dictionary", "two", "inverted", "inverted columns", "advantages",
        "standardized", "returns", "returns of values", "past", "past of values",
        "past, paid at the end", "past, standardized", "wrong way round",
    ],
)  # fmt: skip
def test_rewards_that_are_added_up_wrongly(
    run_dir: Path, program: Program, said: str
) -> None:
    (finding,) = judged(run_dir, program)
    assert finding.severity is Severity.WARNING
    assert said in finding.message


@pytest.mark.parametrize(
    "program",
    [
        learned(of_tuple(lambda done: 1 - done)),
        learned(of_dictionary(lambda done: 1 - done)),
        learned(of_two(is_masked=True)),
        learned(of_mask),
        learned(of_time_limit),
        learned(of_bonus),
        advantages_of_rollouts(stops=True),
        advantages_of_rollouts(stops=True, standardizes=True),
        episodes(from_the_end),
        episodes(from_the_end, of_values=True, standardizes=True),
        episodes(from_the_end, is_sparse=True),
        of_lists(list, turns=False),
        of_lists(lambda each: each[::-1], turns=True),
    ],
    ids=[
        "tuple", "dictionary", "two", "mask", "time limit", "bonus", "advantages",
        "standardized", "returns", "returns of values", "paid at the end",
        "lists", "both lists turned",
    ],
)  # fmt: skip
def test_rewards_that_are_added_up_well(run_dir: Path, program: Program) -> None:
    assert judged(run_dir, program) == []
