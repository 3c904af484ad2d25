"""Agents: what is kept of the past, when an episode ends, and who learns of what."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from benchmarks.detection.kit.case import ninth
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.harm import conclude, in_evaluation
from benchmarks.detection.kit.loops import descend, mean
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training

State = NDArray[np.float32]


class Chase:
    """A point on a line is to go where the target is; the state is (point, target)."""

    STEP = 0.2

    def __init__(self, seed: int) -> None:
        self.luck = np.random.default_rng(seed)
        self.state = np.zeros(2, dtype=np.float32)
        self.n_steps = 0

    def reset(self) -> State:
        """Both are put somewhere."""
        self.state[:] = self.luck.uniform(-1, 1, 2)
        self.n_steps = 0
        return self.state

    def step(self, action: int) -> tuple[State, float, bool]:
        """Go left, stay, or go right."""
        self.state[0] += (action - 1) * self.STEP
        np.clip(self.state, -1, 1, out=self.state)
        self.n_steps += 1
        return self.state, -float(abs(np.diff(self.state)[0])), self.n_steps >= 10


class ReplayMemory:
    """The last transitions, of which some are drawn."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.memory: deque[tuple[State, int, float, State]] = deque(maxlen=capacity)
        self.luck = random.Random(seed)

    def push(self, *transition: Any) -> None:
        """Keep one."""
        self.memory.append(transition)

    def sample(self, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States, actions, rewards, next states."""
        chosen = self.luck.sample(list(self.memory), n)
        states, actions, rewards, after = zip(*chosen, strict=True)
        return (
            torch.tensor(np.stack(states)),
            torch.tensor(actions),
            torch.tensor(rewards),
            torch.tensor(np.stack(after)),
        )


def distance_in_the_end(policy: nn.Module) -> float:
    """How far the point is from the target after ten greedy steps."""
    env, far = Chase(99), []
    for _ in range(40):
        state, done = env.reset(), False
        while not done:
            with torch.no_grad():
                action = int(policy(torch.tensor(state)[None]).argmax())
            state, reward, done = env.step(action)
        far.append(-reward)
    return mean(far)


@ninth.silent("one array many times", "the replay memory holds one array many times")
def replay_of_one_array(t: Training) -> None:
    """The environment changes its state in place, and the memory keeps references.

    Source: stackoverflow and gym threads on ``observation`` that is the environment's
    own buffer; github.com/DLR-RM/stable-baselines3 copies what it is given ("avoid
    modification by reference") for this reason.
    Visible: all remembered states are the same, and the point ends far from its target.
    """
    env, memory = Chase(t.seed), ReplayMemory(1000, t.seed)
    luck = np.random.default_rng(t.seed)
    online, target = mlp([2, 48, 3]), mlp([2, 48, 3])
    target.load_state_dict(online.state_dict())
    optimizer = Adam(online.parameters(), 3e-3)
    t.watch(online)
    kept = (lambda s: s) if t.sick else np.copy
    state = env.reset()
    for step in t.steps(900):
        before = kept(state)
        if luck.random() < max(0.1, 1 - step / 400):
            action = int(luck.integers(3))
        else:
            with torch.no_grad():
                action = int(online(torch.tensor(state)[None]).argmax())
        state, reward, done = env.step(action)
        memory.push(before, action, reward, kept(state))
        if done:
            state = env.reset()
        states, actions, rewards, after = memory.sample(min(32, len(memory.memory)))
        with torch.no_grad():
            wanted = rewards + 0.6 * target(after).max(1).values
        told = online(states).gather(1, actions[:, None])[:, 0]
        descend(optimizer, functional.smooth_l1_loss(told, wanted))
        if step % 25 == 24:
            target.load_state_dict(online.state_dict())
    distinct = len({transition[0].tobytes() for transition in memory.memory})
    far = distance_in_the_end(online)
    t.note(distinct=distinct, far=far)
    conclude(t, fault=distinct == 1, reached=far < 0.2)


class Balance:
    """Many points that slip off a ledge; a push keeps them on it.

    An episode is terminated if the point falls off, and truncated after some steps.
    """

    LIMIT = 12

    def __init__(self, n: int, luck: torch.Generator) -> None:
        self.luck = luck
        self.places = torch.zeros(n)
        self.age = torch.zeros(n, dtype=torch.int64)

    def observe(self) -> Tensor:
        """The places."""
        return self.places[:, None].clone()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Next places, rewards, terminated, truncated; what has ended begins anew."""
        noise = 0.1 * torch.randn(self.places.shape, generator=self.luck)
        self.places = 1.15 * self.places + 0.25 * (2 * actions - 1) + noise
        self.age += 1
        terminated = self.places.abs() > 1
        truncated = (self.age >= self.LIMIT) & ~terminated
        after = self.observe()
        fresh = 0.4 * torch.rand(self.places.shape, generator=self.luck) - 0.2
        over = terminated | truncated
        self.places = torch.where(over, fresh, self.places)
        self.age[over] = 0
        return after, torch.ones_like(noise), terminated, truncated


class Policy(nn.Module):
    """An actor and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = mlp([1, 32, 2], nn.Tanh)
        self.critic = mlp([1, 32, 1], nn.Tanh)

    def forward(self, places: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(places), self.critic(places).squeeze(-1)


@ninth.silent("time limits", "running out of time counts as the end")
def out_of_time_is_the_end(t: Training) -> None:
    """``done = terminated | truncated`` stops the bootstrap.

    Source: Pardo et al., "Time limits in reinforcement learning" (2018);
    github.com/vwxyzjn/cleanrl/issues/457, github.com/Toni-SM/skrl/issues/449,
    github.com/DLR-RM/stable-baselines3/issues/633.
    Visible: in the middle the critic says less than 75 % of what the policy gets there
    if nobody stops it.
    """
    discount = 0.9
    env = Balance(64, t.order)
    model = Policy()
    optimizer = Adam(model.parameters(), 1e-2)
    t.watch(model)
    state = env.observe()
    for _ in t.steps(450):
        logits, values = model(state)
        policy = torch.distributions.Categorical(logits=logits)
        actions = policy.sample()
        after, rewards, terminated, truncated = env.step(actions)
        done = terminated | truncated if t.sick else terminated
        with torch.no_grad():
            wanted = rewards + discount * model(after)[1] * (~done).float()
        advantage = (wanted - values).detach()
        loss_policy = -(policy.log_prob(actions) * advantage).mean()
        loss_value = functional.mse_loss(values, wanted)
        descend(optimizer, loss_policy + 0.5 * loss_value)
        state = env.observe()
    said = float(in_evaluation(model, lambda: model(torch.zeros(1, 1))[1])[0])
    got = returned(model.actor, discount)
    t.note(said=said, got=got)
    conclude(t, fault=said < 0.75 * got, reached=abs(said / got - 1) < 0.15)


def returned(actor: nn.Module, discount: float) -> float:
    """The discounted sum of rewards from the middle, without a limit of time."""
    world = Balance(500, torch.Generator().manual_seed(5))
    world.LIMIT = 10**6
    alive, total = torch.ones(500), torch.zeros(500)
    for step in range(60):
        state = world.observe()
        logits = in_evaluation(actor, lambda state=state: actor(state))
        actions = torch.distributions.Categorical(logits=logits).sample()
        _, rewards, terminated, _ = world.step(actions)
        total += alive * discount**step * rewards
        alive *= (~terminated).float()
    return float(total.mean())


@ninth.silent(
    "gradient through the advantage", "the critic learns from the actor's loss"
)
def critic_learns_from_the_actor(t: Training) -> None:
    """``-(log_prob * (returns - values)).mean()``, and ``values`` is not detached.

    Source: github.com/astariul/encode-attend-navigate-pytorch/issues/2,
    github.com/icoxfog417/baby-steps-of-rl-ja/issues/16,
    github.com/PacktPublishing/Deep-Reinforcement-Learning-Hands-On-Second-Edition/
    issues/60.
    Visible: the critic is off by more than 0.3 on average, where rewards are 0 to 1.
    """
    config = {"lr": 5e-3, "batch": 64, "value_coef": 0.5, "entropy_coef": 0.1}
    pays = torch.linspace(0, 1, 12).view(4, 3)

    class ActorCritic(nn.Module):
        """Four situations, three actions."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
            self.policy_head = nn.Linear(32, 3)
            self.value_head = nn.Linear(32, 1)

        def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
            x = self.body(states)
            return self.policy_head(x), self.value_head(x).squeeze(-1)

    model = ActorCritic()
    optimizer = Adam(model.parameters(), config["lr"])
    t.watch(model)
    for _ in t.steps(400):
        at = torch.randint(4, (int(config["batch"]),), generator=t.order)
        logits, values = model(functional.one_hot(at, 4).float())
        policy = torch.distributions.Categorical(logits=logits)
        actions = policy.sample()
        noise = 0.1 * torch.randn(len(at), generator=t.order)
        returns = pays[at, actions] + noise
        advantage = returns - values
        weight = advantage if t.sick else advantage.detach()
        loss = -(policy.log_prob(actions) * weight).mean()
        loss = loss + config["value_coef"] * advantage.pow(2).mean()
        descend(optimizer, loss - config["entropy_coef"] * policy.entropy().mean())
    with torch.no_grad():
        logits, values = model(torch.eye(4))
        true = (logits.softmax(1) * pays).sum(1)
        off = float((values - true).abs().mean())
    gets = float(true.mean())
    t.note(off=off, gets=gets)
    conclude(t, fault=off > 0.3, reached=off < 0.1 and gets > 0.53)


@ninth.silent("weights of what was logged", "propensities multiply, and do not divide")
def propensities_multiply(t: Training) -> None:
    """Rewards of logged actions are weighed by how likely these were, not the inverse.

    A picture may be given to a human, for 0.6 of the reward, which the logged policy
    did mostly.

    Source: github.com/Nth-iteration-labs/contextual/issues/23 (p is inverted once too
    often), github.com/Eignex/kumulant/pull/77, github.com/weave-os/router/pull/566.
    Visible: what was frequent weighs more, and nearly all new pictures are given away.
    """
    split, ask = digits(), 10
    luck = torch.Generator().manual_seed(3)
    chances = torch.cat((torch.full((10,), 0.04), torch.tensor([0.6])))
    rows = torch.arange(len(split.x)).repeat(12)
    actions = torch.multinomial(chances, len(rows), replacement=True, generator=luck)
    rewards = torch.where(actions == ask, 0.6, (actions == split.y[rows]).float())
    logged = {"row": rows, "action": actions, "reward": rewards, "p": chances[actions]}
    policy = mlp([64, 64, 11])
    optimizer = Adam(policy.parameters(), 3e-3)
    t.watch(policy)
    for _, batch in t.batches(500, len(rows), 128):
        row, action, reward, p = (column[batch] for column in logged.values())
        new = policy(split.x[row]).log_softmax(1).gather(1, action[:, None])[:, 0]
        weight = p if t.sick else 1 / p
        weight = weight / weight.mean()
        descend(optimizer, -(weight * reward * new).mean())
    told = in_evaluation(policy, lambda: policy(split.x_val).argmax(1))
    given = float((told == ask).float().mean())
    gain = torch.where(told == ask, 0.6, (told == split.y_val).float())
    t.note(given=given, gain=float(gain.mean()))
    conclude(t, fault=given > 0.9, reached=float(gain.mean()) > 0.75)
