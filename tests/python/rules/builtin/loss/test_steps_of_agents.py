"""LossTermMisuse, on agents whose steps are not those that they have made."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import LossTermMisuse
from tdbg.run.findings import Finding, Severity

Program = Callable[[td.Hook], None]
N, GAMMA = 32, 0.9


class World:
    """A point that moves; in place, if so."""

    def __init__(self, *, in_place: bool) -> None:
        self.luck = np.random.default_rng(0)
        self.in_place = in_place
        self.at = self.luck.normal(size=4).astype(np.float32)

    def now(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return self.at if self.in_place else self.at.copy()

    def step(self, action: int) -> float:
        self.at *= 0.9
        self.at += 0.3 * self.luck.normal(size=4).astype(np.float32)
        self.at[0] += 0.1 * (action - 1)
        return float(self.at[1])


class Step(NamedTuple):
    """What an agent has seen, done, got and seen then."""

    state: np.ndarray[tuple[int], np.dtype[np.float32]]
    action: int
    reward: float
    next_state: np.ndarray[tuple[int], np.dtype[np.float32]]


def values_of_actions(
    *,
    in_place: bool = False,
    forgets: bool = False,
    chosen: Callable[[Tensor, Tensor], Tensor] = lambda values, actions: values.gather(
        1, actions
    ),
    is_greedy: bool = False,
    never_moves: bool = False,
) -> Program:
    """Q-learning with a buffer, in a loop of its own."""

    def program(hook: td.Hook) -> None:
        net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        target, world = copy.deepcopy(net), World(in_place=in_place)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        hook.register_module(net)
        memory = list[Step]()
        state = world.now()
        for i in range(N + 12):
            action = random.randrange(3)
            if never_moves:
                reward, next_state = float(world.luck.normal()), state.copy()
            else:
                reward, next_state = world.step(action), world.now()
            if forgets:
                state = next_state
            memory.append(Step(state, action, reward, next_state))
            state = next_state
            if i >= N:
                batch = random.sample(memory, N)
                states = torch.tensor(np.array([each.state for each in batch]))
                next_states = torch.tensor(np.array([e.next_state for e in batch]))
                rewards = torch.tensor([each.reward for each in batch])
                with torch.no_grad():
                    y = rewards + GAMMA * target(next_states).amax(1)
                values = net(states)
                actions = torch.tensor([[each.action] for each in batch])
                if is_greedy:
                    actions = values.argmax(1, keepdim=True)
                loss = functional.mse_loss(chosen(values, actions)[:, 0], y)
                learn(hook, optimizer, loss)

    return program


def largest(values: Tensor, _: Tensor) -> Tensor:
    return values.max(1, keepdim=True).values


def largest_by_amax(values: Tensor, _: Tensor) -> Tensor:
    return values.amax(1, keepdim=True)


def one_state_for_all(hook: td.Hook) -> None:
    """A bandit: each sample is the only state there is."""
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    hook.register_module(net)
    for _ in range(12):
        obs = torch.randn(N, 4)
        next_obs, dones = obs.clone(), torch.ones(N)
        actions, rewards = torch.randint(3, (N, 1)), obs[:, 0]
        target = rewards + GAMMA * net(next_obs).amax(1).detach() * (1 - dones)
        values = net(obs).gather(1, actions)[:, 0]
        learn(hook, optimizer, functional.mse_loss(values, target))


def of_many_worlds(hook: td.Hook) -> None:
    """The present of all worlds is what came last, where the rollout is learned."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    hook.register_module(net)
    obs = torch.randn(N, 4)
    for _ in range(12):
        rewards = list[Tensor]()
        values = list[Tensor]()
        for _ in range(3):
            values.append(net(obs)[:, 0])
            next_obs = 0.9 * obs + 0.1 * torch.randn(N, 4)
            rewards.append(obs[:, 0])
            obs = next_obs
        target = torch.cat(rewards)
        learn(hook, optimizer, functional.mse_loss(torch.cat(values), target))


def advantages(*, of_present: bool, ends: bool = True) -> Program:
    """Generalized advantages, by a loop from the end."""

    def program(hook: td.Hook) -> None:
        net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        hook.register_module(net)
        for _ in range(8):
            states = torch.randn(48, 4)
            rewards, dones = states[:, 0], torch.zeros(48)
            if ends:
                dones[::11] = 1.0
            with torch.no_grad():
                values = net(states)[:, 0]
            adv, last = torch.zeros(48), 0.0
            for t in reversed(range(48)):
                after = 0.0 if t == 47 else values[t + 1]
                ahead = values[t] if of_present else after
                delta = rewards[t] + GAMMA * ahead * (1 - dones[t]) - values[t]
                adv[t] = last = delta + GAMMA * 0.95 * (1 - dones[t]) * last
            returns = adv + values
            learn(hook, optimizer, functional.mse_loss(net(states)[:, 0], returns))

    return program


def learn(hook: td.Hook, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    hook.save_scalar("loss", float(loss.detach()))


def judged(run_dir: Path, program: Program) -> list[Finding]:
    torch.manual_seed(0)
    random.seed(0)
    rules = [LossTermMisuse()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        program(hook)
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


SICK = {
    "forgets": (values_of_actions(forgets=True), "nothing happens in any step"),
    "in place": (values_of_actions(in_place=True), "are one observation in all"),
    "largest": (values_of_actions(chosen=largest), "`actions` are other actions"),
    "amax": (values_of_actions(chosen=largest_by_amax), "trains the largest value"),
    "present": (advantages(of_present=True), "`adv` have the value of the state"),
    "no ends": (advantages(of_present=True, ends=False), "where that of the next"),
}


@pytest.mark.parametrize("name", SICK)
def test_steps_that_are_others(run_dir: Path, name: str) -> None:
    program, said = SICK[name]
    (finding,) = judged(run_dir, program)
    assert finding.severity is Severity.WARNING
    assert said in finding.message
    assert finding.advice


HEALTHY = {
    "as they were": values_of_actions(),
    "greedy": values_of_actions(chosen=largest, is_greedy=True),
    "bandit": one_state_for_all,
    "many worlds": of_many_worlds,
    "advantages": advantages(of_present=False),
    "advantages without ends": advantages(of_present=False, ends=False),
    # One state, and rewards by chance: a buffer would have more than one.
    "one state": values_of_actions(never_moves=True, in_place=False),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_steps_that_are_what_they_should_be(run_dir: Path, name: str) -> None:
    assert judged(run_dir, HEALTHY[name]) == []
