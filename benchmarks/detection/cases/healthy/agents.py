"""Healthy agents, graphs, and a differential equation."""

from __future__ import annotations

import copy
import math
from collections import deque

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import second
from benchmarks.detection.kit.data import diabetes, digits
from benchmarks.detection.kit.loops import descend, mean, noted_accuracy
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


@second.healthy
def policy_gradient_bandit(t: Training) -> None:
    """REINFORCE with a baseline: which of ten levers, told by the picture of a digit.

    The loss is a surrogate around zero; only the reward says that it learns.
    """
    split = digits()
    model = mlp((64, 64, 10))
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)
    baseline, rewards = 0.1, []
    for _ in t.steps(400):
        batch = t.draw(len(split.x), 64)
        policy = torch.distributions.Categorical(logits=model(split.x[batch]))
        action = policy.sample()
        reward = (action == split.y[batch]).float()
        gain = reward - baseline
        loss = -(policy.log_prob(action) * gain).mean() - 0.01 * policy.entropy().mean()
        descend(optimizer, loss)
        baseline = 0.95 * baseline + 0.05 * float(reward.mean())
        rewards.append(float(reward.mean()))
    t.note(begin=sum(rewards[:20]) / 20, reward=mean(rewards[-20:]))
    t.learned(mean(rewards[-20:]) > 0.6)


SIDE = 5


def moved(place: int, action: int) -> int:
    """Where a step in one of four directions leads on a board with walls around."""
    row, column = divmod(place, SIDE)
    row = min(max(row + (-1, 1, 0, 0)[action], 0), SIDE - 1)
    column = min(max(column + (0, 0, -1, 1)[action], 0), SIDE - 1)
    return row * SIDE + column


@second.healthy
def deep_q_learning(t: Training) -> None:
    """DQN on a board of 5 x 5: replay, a target network, Huber loss, falling epsilon.

    The loss rises with the values that are learned. Learned: the way is near the
    shortest from everywhere.
    """
    model, criterion = mlp((SIDE**2, 64, 4)), nn.SmoothL1Loss()
    target = copy.deepcopy(model)
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    states = torch.eye(SIDE**2)
    memory: deque[tuple[int, int, float, int]] = deque(maxlen=3000)
    goal, place = SIDE**2 - 1, 0
    for step in t.steps(600):
        with torch.no_grad():
            values = target(states)
        for _ in range(8):
            explore = float(torch.rand((), generator=t.order)) < max(
                0.1, 1 - step / 250
            )
            action = int(t.draw(4, 1)) if explore else int(values[place].argmax())
            after = moved(place, action)
            memory.append((place, action, float(after == goal), after))
            place = int(t.draw(goal, 1)) if after == goal else after
        chosen = [memory[i] for i in t.draw(len(memory), 64).tolist()]
        s, a, r, s2 = (torch.tensor(column) for column in zip(*chosen, strict=True))
        wanted = r + 0.9 * (s2 != goal) * values[s2].amax(1)
        said = model(states[s]).gather(1, a[:, None])[:, 0]
        descend(optimizer, criterion(said, wanted))
        if step % 20 == 19:
            target.load_state_dict(model.state_dict())
    with torch.no_grad():
        best = model(states).argmax(1).tolist()
    found = 0
    for begin in range(goal):
        at, n_left = begin, 2 * SIDE
        while at != goal and n_left:
            at, n_left = moved(at, best[at]), n_left - 1
        found += at == goal
    t.note(found=found / goal)
    t.learned(found / goal > 0.9)


class ActorCritic(nn.Module):
    """Tells chances of actions and the value of a place."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 48), nn.Tanh())
        self.actor, self.critic = nn.Linear(48, 2), nn.Linear(48, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)
        nn.init.orthogonal_(self.critic.weight, 1.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h)[..., 0]


def pole(state: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
    """The cart and pole of Barto 1983, many at once; and which of them fell."""
    _, v, angle, spin = state.unbind(1)
    force = 20.0 * push - 10.0
    sin, cos = angle.sin(), angle.cos()
    part = (force + 0.05 * spin**2 * sin) / 1.1
    twist = (9.8 * sin - cos * part) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    pull = part - 0.05 * twist * cos / 1.1
    moves = torch.stack([v, pull, spin, twist], 1)
    after = state + 0.02 * moves
    return after, (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.21)


@second.healthy
def actor_critic_cart_pole(t: Training) -> None:
    """Advantage actor-critic, 32 carts, ten steps each before the optimizer's step.

    Orthogonal weights, nearly zero in the policy's head, as in all such programs. The
    value's loss grows while the poles stay up longer.
    """
    model = ActorCritic()
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    state, age = torch.zeros(32, 4), torch.zeros(32)
    ages = []
    for _ in t.steps(300):
        history = []
        for _ in range(10):
            logits, value = model(state)
            policy = torch.distributions.Categorical(logits=logits)
            push = policy.sample()
            after, fell_over = pole(state, push)
            history.append((policy.log_prob(push), value, fell_over, policy.entropy()))
            age += 1
            ages += age[fell_over].tolist()
            age[fell_over] = 0
            fresh = 0.1 * torch.rand(32, 4, generator=t.order) - 0.05
            state = torch.where(fell_over[:, None], fresh, after)
        with torch.no_grad():
            to_come = model(state)[1]
        loss = torch.zeros(())
        for log_prob, value, fell_over, entropy in reversed(history):
            to_come = 1 + 0.97 * to_come * ~fell_over
            gain = to_come - value
            loss = loss - (log_prob * gain.detach()).mean()
            loss = loss + 0.05 * gain.pow(2).mean() - 0.01 * entropy.mean()
        optimizer.zero_grad()
        (loss / 10).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    t.note(begin=sum(ages[:50]) / 50, end=mean(ages[-50:]))
    t.learned(mean(ages[-50:]) > 3 * sum(ages[:50]) / 50)


class Fourier(nn.Module):
    """Places as sines of many frequencies (Tancik 2020), fixed."""

    waves: Tensor

    def __init__(self, n: int = 64) -> None:
        super().__init__()
        self.register_buffer("waves", 4 * torch.randn(2, n))

    def forward(self, x: Tensor) -> Tensor:
        angle = 2 * math.pi * x @ self.waves
        return torch.cat([angle.sin(), angle.cos()], 1)


@second.healthy
def picture_as_a_network(t: Training) -> None:
    """From place to brightness: learning a sheet of digits by heart is the aim."""
    sheet = digits().x[:16].view(4, 4, 8, 8).transpose(1, 2).reshape(32, 32)
    line = torch.linspace(0, 1, 32)
    places = torch.cartesian_prod(line, line)
    model = nn.Sequential(Fourier(), *mlp((128, 96, 96, 1)))
    criterion = nn.MSELoss()
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    wanted = sheet.reshape(-1, 1)
    losses = [
        descend(optimizer, criterion(model(places), wanted)) for _ in t.steps(250)
    ]
    t.note(begin=losses[0], end=losses[-1])
    t.learned(losses[-1] < 0.01)


class Graph(nn.Module):
    """Two graph convolutions with dropout (Kipf 2017)."""

    near: Tensor

    def __init__(self, near: Tensor) -> None:
        super().__init__()
        self.register_buffer("near", near)
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 10)
        self.relu, self.drop = nn.ReLU(), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.relu(self.near @ self.first(x)))
        return self.near @ self.second(h)


@second.healthy
def graph_convolutions(t: Training) -> None:
    """All digits are nodes, near ones are joined; only 100 labels are known.

    One batch for all steps, and validation in every tenth on the same nodes.
    """
    split = digits()
    distance = torch.cdist(split.x, split.x)
    rows = distance.topk(6, largest=False).indices
    near = torch.zeros_like(distance).scatter_(1, rows, 1.0)
    near = torch.maximum(near, near.T)
    scale = near.sum(1).rsqrt()
    model = Graph(scale[:, None] * near * scale)
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    t.watch(model, criterion)
    right = 0.0
    for step in t.steps(200):
        descend(optimizer, criterion(model(split.x)[:100], split.y[:100]))
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                said = model(split.x)[100:]
                criterion(said, split.y[100:])
            model.train()
            right = float((said.argmax(1) == split.y[100:]).float().mean())
    t.note(right=right)
    t.learned(right > 0.88)


@second.healthy
def pairwise_ranking(t: Training) -> None:
    """Which of two patients fares worse? A margin loss on the difference of scores."""
    split = diabetes()
    model, criterion = mlp((10, 16, 1)), nn.MarginRankingLoss(0.5)
    optimizer = Adam(model.parameters(), 3e-3, weight_decay=1e-3)
    t.watch(model, criterion)
    for _ in t.steps(250):
        a, b = t.draw(len(split.x), 64), t.draw(len(split.x), 64)
        order = torch.sign(split.y[a] - split.y[b])[:, 0]
        descend(
            optimizer,
            criterion(model(split.x[a])[:, 0], model(split.x[b])[:, 0], order),
        )
    with torch.no_grad():
        said = model(split.x_val)[:, 0]
    pairs = torch.combinations(torch.arange(len(said)))
    higher = said[pairs[:, 0]] > said[pairs[:, 1]]
    right = float(
        (higher == (split.y_val[pairs[:, 0], 0] > split.y_val[pairs[:, 1], 0]))
        .float()
        .mean()
    )
    t.note(pairs_right=right)
    t.learned(right > 0.66)


@second.healthy
def differential_equation(t: Training) -> None:
    """A network is to solve u' = -u, u(0) = 1: its own derivative is in the loss."""
    model = mlp((1, 32, 32, 1), nn.Tanh)
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)
    for _ in t.steps(300):
        x = (3 * torch.rand(64, 1, generator=t.order)).requires_grad_()
        u = 1 + x * model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        descend(optimizer, (slope + u).pow(2).mean())
    x = torch.linspace(0, 3, 50)[:, None]
    with torch.no_grad():
        off = float((1 + x * model(x) - (-x).exp()).abs().max())
    t.note(off=off)
    t.learned(off < 0.05)


@second.healthy
def adversarial_training(t: Training) -> None:
    """Each batch is moved against the model by a step of its gradient (FGSM) first."""
    split = digits()
    model, criterion = mlp((64, 128, 64, 10)), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    for _, batch in t.batches(250, len(split.x), 64):
        x = split.x[batch].clone().requires_grad_()
        (uphill,) = torch.autograd.grad(
            nn.functional.cross_entropy(model(x), split.y[batch]), x
        )
        worse = (x + 0.05 * uphill.sign()).detach()
        descend(optimizer, criterion(model(worse), split.y[batch]))
    t.learned(noted_accuracy(t, model, split) > 0.9)
