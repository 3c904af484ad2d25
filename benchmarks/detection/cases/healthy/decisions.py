"""Healthy agents and imitators: losses that follow values, and need not fall."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import fifth
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import descend, mean, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training

#: Cells of a corridor; the reward is at the right end.
CELLS = 8


class Corridor:
    """Many walks at once: left or right; 1 at the right end, where a walk ends.

    A move goes wrong in one of ten cases; a walk is cut off after 30 moves.
    """

    def __init__(self, n: int) -> None:
        self.at = torch.zeros(n, dtype=torch.int64)
        self.age = torch.zeros(n, dtype=torch.int64)

    def seen(self) -> Tensor:
        """One-hot cells."""
        return nn.functional.one_hot(self.at, CELLS).float()

    def move(self, right: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards, and which walks have come to their end; these begin again."""
        slips = torch.rand(len(right)) < 0.1
        step = torch.where(slips, 1 - right, right) * 2 - 1
        self.at = (self.at + step).clamp(0, CELLS - 1)
        self.age += 1
        done = self.at == CELLS - 1
        over = done | (self.age >= 30)
        self.at[over] = 0
        self.age[over] = 0
        return done.float(), done.float()


def walked(chosen: Tensor) -> float:
    """Mean reward per move of a policy (a move for each cell); the best has 0.11."""
    walks, total = Corridor(64), 0.0
    for _ in range(100):
        total += float(walks.move(chosen[walks.at])[0].mean())
    return total / 100


@fifth.healthy
def clipped_policy_ratio(t: Training) -> None:
    """PPO: advantages by GAE, a clipped ratio, an entropy bonus; Schulman 2017.

    Learned: most of the reward that there is to get.
    """
    model = nn.ModuleDict(
        {"actor": mlp((CELLS, 32, 2), nn.Tanh), "critic": mlp((CELLS, 32, 1), nn.Tanh)}
    )
    optimizer, walks = Adam(model.parameters(), 5e-3), Corridor(32)
    actor, critic = model["actor"], model["critic"]
    t.watch(model)
    seen = moves = said = advantage = wanted = torch.empty(0)
    for step in t.steps(160):
        if step % 4 == 0:  # Four epochs on what one collection gave.
            with torch.no_grad():
                rows = []
                for _ in range(16):
                    state = walks.seen()
                    policy = torch.distributions.Categorical(logits=actor(state))
                    move = policy.sample()
                    reward, done = walks.move(move)
                    rows.append((state, move, policy.log_prob(move), reward, done))
                seen, moves, said, rewards, ends = map(
                    torch.stack, zip(*rows, strict=True)
                )
                values = critic(torch.cat((seen, walks.seen()[None])))[..., 0]
                advantage, carried = torch.zeros_like(rewards), torch.zeros(32)
                for k in reversed(range(16)):
                    goes_on = 0.95 * (1 - ends[k])
                    error = rewards[k] + goes_on * values[k + 1] - values[k]
                    carried = error + 0.95 * goes_on * carried
                    advantage[k] = carried
                wanted = advantage + values[:-1]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.distributions.Categorical(logits=actor(seen))
        ratio = (policy.log_prob(moves) - said).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        error = (critic(seen)[..., 0] - wanted).pow(2)
        loss = -gain.mean() + 0.5 * error.mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    guessed = walked(torch.zeros(CELLS, dtype=torch.int64))
    with torch.no_grad():
        reached = walked(actor(torch.eye(CELLS)).argmax(1))
    t.note(reward=reached, always_left=guessed)
    t.learned(reached > 0.08)


class Memory:
    """What many walks by chance have seen, all at once; half of them go right."""

    def __init__(self, n: int = 4000) -> None:
        walks = Corridor(40)
        rows = []
        for _ in range(n // 40):
            state = walks.seen()
            move = (torch.rand(40) < 0.6).long()
            reward, done = walks.move(move)
            # After the end it begins anew, but what follows the end does not count.
            rows.append((state, move, reward, done, walks.seen()))
        self.rows = [torch.cat(column) for column in zip(*rows, strict=True)]

    def draw(self, t: Training, size: int) -> list[Tensor]:
        """States, moves, rewards, ends and the states that follow."""
        chosen = t.draw(len(self.rows[0]), size)
        return [column[chosen] for column in self.rows]


@fifth.healthy
def values_as_distributions(t: Training) -> None:
    """C51: the return as a distribution over 21 atoms; Bellemare 2017.

    The loss is a cross-entropy whose floor is the entropy of the returns. Learned:
    the greedy policy goes right.
    """
    model, memory, atoms = mlp((CELLS, 48, 42)), Memory(), torch.linspace(0, 1, 21)
    target = copy.deepcopy(model)
    t.watch(model)

    def loss_of(step: int) -> Tensor:
        if step % 20 == 0:
            target.load_state_dict(model.state_dict())
        state, move, reward, done, after = memory.draw(t, 64)
        with torch.no_grad():
            chance = target(after).view(-1, 2, 21).softmax(2)
            best = (chance * atoms).sum(2).argmax(1)
            chance = chance[torch.arange(64), best]
            goes_on = 0.9 * (1 - done[:, None])
            place = (reward[:, None] + goes_on * atoms).clamp(0, 1) * 20
            low = place.floor()
            share = place - low
            wanted = torch.zeros(64, 21).scatter_add_(
                1, low.long(), chance * (1 - share)
            )
            wanted.scatter_add_(1, (low.long() + 1).clamp(max=20), chance * share)
        said = model(state).view(-1, 2, 21)[torch.arange(64), move].log_softmax(1)
        return -(wanted * said).sum(1).mean()

    train(t, loss_of, Adam(model.parameters(), 2e-3), n_steps=400)
    with torch.no_grad():
        value = (model(torch.eye(CELLS)).view(-1, 2, 21).softmax(2) * atoms).sum(2)
    reached = walked(value.argmax(1))
    t.note(reward=reached)
    t.learned(reached > 0.08)


@fifth.healthy
def quantiles_of_returns(t: Training) -> None:
    """QR-DQN: 11 quantiles of the return by a Huber quantile loss; Dabney 2018.

    The loss rises while values grow from the goal backwards.
    """
    model, memory = mlp((CELLS, 48, 22)), Memory()
    target = copy.deepcopy(model)
    levels = (torch.arange(11) + 0.5) / 11
    t.watch(model)

    def loss_of(step: int) -> Tensor:
        if step % 20 == 0:
            target.load_state_dict(model.state_dict())
        state, move, reward, done, after = memory.draw(t, 64)
        with torch.no_grad():
            value = target(after).view(-1, 2, 11)
            value = value[torch.arange(64), value.mean(2).argmax(1)]
            wanted = reward[:, None] + 0.9 * (1 - done[:, None]) * value
        said = model(state).view(-1, 2, 11)[torch.arange(64), move]
        error = wanted[:, None] - said[..., None]
        huber = nn.functional.huber_loss(
            said[..., None].expand_as(error),
            wanted[:, None].expand_as(error),
            reduction="none",
            delta=0.1,
        )
        weight = (levels[:, None] - (error.detach() < 0).float()).abs()
        return (weight * huber).sum(1).mean() / 0.1

    train(t, loss_of, Adam(model.parameters(), 2e-3), n_steps=400)
    with torch.no_grad():
        value = model(torch.eye(CELLS)).view(-1, 2, 11).mean(2)
    reached = walked(value.argmax(1))
    t.note(reward=reached)
    t.learned(reached > 0.08)


@fifth.healthy
def conservative_values(t: Training) -> None:
    """Offline: CQL on what walks by chance have seen; Kumar 2020, the discrete form.

    Learned: at least a third of what the best policy gets.
    """
    model, memory = mlp((CELLS, 48, 2)), Memory()
    target = copy.deepcopy(model)
    t.watch(model)

    def loss_of(step: int) -> Tensor:
        if step % 15 == 0:
            target.load_state_dict(model.state_dict())
        state, move, reward, done, after = memory.draw(t, 64)
        with torch.no_grad():
            wanted = reward + 0.9 * (1 - done) * target(after).amax(1)
        value = model(state)
        said = value.gather(1, move[:, None])[:, 0]
        penalty = (value.logsumexp(1) - said).mean()
        return (said - wanted).pow(2).mean() + 0.02 * penalty

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=600)
    with torch.no_grad():
        reached = walked(model(torch.eye(CELLS)).argmax(1))
    t.note(reward=reached)
    t.learned(reached > 0.04)


def pushed(at: Tensor, force: Tensor) -> tuple[Tensor, Tensor]:
    """A cart on a line: where it is next, and the reward, highest at rest at 0."""
    place, speed = at.unbind(1)
    reward = -(place**2) - 0.1 * speed**2 - 0.05 * force**2
    speed = 0.95 * speed + 0.3 * force
    return torch.stack(((place + 0.2 * speed).clamp(-3, 3), speed), 1), reward


@fifth.healthy
def soft_actor_critic(t: Training) -> None:
    """Two critics, a squashed Gaussian policy, a temperature that is learned.

    Haarnoja 2018. Three optimizers; the critics' loss grows with the values. Learned:
    half of what a cart without force would lose.
    """
    actor = mlp((2, 32, 2))
    critics = nn.ModuleList(mlp((3, 32, 1)) for _ in range(2))
    slow = copy.deepcopy(critics).requires_grad_(requires_grad=False)
    heat = nn.Parameter(torch.tensor(-1.0))
    for_actor, for_heat = Adam(actor.parameters(), 3e-3), Adam([heat], 3e-3)
    for_critics = Adam(critics.parameters(), 3e-3)
    t.watch(nn.ModuleDict({"actor": actor, "critics": critics}))

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        middle, width = actor(state).chunk(2, 1)
        normal = torch.distributions.Normal(middle, width.clamp(-5, 1).exp())
        free = normal.rsample()
        bent = 2 * (math.log(2) - free - nn.functional.softplus(-2 * free))
        return free.tanh(), (normal.log_prob(free) - bent)[:, 0]

    def lowest(of: nn.ModuleList, state: Tensor, force: Tensor) -> Tensor:
        both = [critic(torch.cat((state, force), 1))[:, 0] for critic in of]
        return torch.minimum(*both)

    at, kept = 2 * torch.randn(16, 2), []
    for step in t.steps(350):
        with torch.no_grad():
            force = act(at)[0] if step > 20 else 2 * torch.rand(16, 1) - 1
            after, reward = pushed(at, force[:, 0])
            kept.append((at, force, reward, after))
            at = 2 * torch.randn(16, 2) if step % 25 == 24 else after
        rows = [torch.cat(column) for column in zip(*kept[-150:], strict=True)]
        chosen = t.draw(len(rows[0]), 128)
        state, force, reward, after = (row[chosen] for row in rows)
        with torch.no_grad():
            move, chance = act(after)
            value = lowest(slow, after, move) - heat.exp() * chance
            wanted = reward + 0.9 * value
        said = [critic(torch.cat((state, force), 1))[:, 0] for critic in critics]
        error = [(value - wanted).pow(2).mean() for value in said]
        descend(for_critics, error[0] + error[1])
        move, chance = act(state)
        cost = heat.exp().detach() * chance - lowest(critics, state, move)
        descend(for_actor, cost.mean())
        descend(for_heat, -(heat * (chance.detach() - 1.0)).mean())
        with torch.no_grad():
            for old, new in zip(slow.parameters(), critics.parameters(), strict=True):
                old.lerp_(new, 0.02)
    lost = []
    with torch.no_grad():
        begin = 2 * torch.randn(200, 2, generator=t.order)
        for controlled in (False, True):
            at, total = begin, 0.0
            for _ in range(40):
                force = actor(at)[:, 0].tanh() if controlled else torch.zeros(200)
                at, reward = pushed(at, force)
                total -= float(reward.mean())
            lost.append(total)
    t.note(without_force=lost[0], lost=lost[1])
    t.learned(lost[1] < 0.6 * lost[0])


@fifth.healthy
def model_of_the_world(t: Training) -> None:
    """One step of a cart is learned as a difference; then ten are foretold.

    Chua 2018 (PETS). Learned: after ten steps of its own it explains nine tenths of
    where the cart is.
    """
    model, criterion = mlp((3, 64, 64, 2), nn.SiLU), nn.MSELoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        at = 1.5 * torch.randn(128, 2, generator=t.order)
        force = 2 * torch.rand(128, 1, generator=t.order) - 1
        return criterion(
            model(torch.cat((at, force), 1)), pushed(at, force[:, 0])[0] - at
        )

    train(t, loss_of, Adam(model.parameters(), 2e-3), n_steps=300)
    true = said = torch.randn(200, 2, generator=t.order)
    with torch.no_grad():
        for _ in range(10):
            force = 2 * torch.rand(200, 1, generator=t.order) - 1
            true = pushed(true, force[:, 0])[0]
            said = said + model(torch.cat((said, force), 1))
    left = float((true - said).pow(2).mean() / true.var())
    t.note(unexplained=left)
    t.learned(left < 0.1)


@fifth.healthy
def imitates_a_controller(t: Training) -> None:
    """Behaviour cloning with DAgger: the expert names moves where the learner goes.

    Ross 2011. Learned: it loses little more than the expert.
    """
    model, criterion = mlp((2, 32, 1), nn.Tanh), nn.MSELoss()
    t.watch(model, criterion)

    def expert(at: Tensor) -> Tensor:
        return (-1.5 * at[:, :1] - 1.0 * at[:, 1:]).clamp(-1, 1)

    seen = 2 * torch.randn(100, 2, generator=t.order)
    optimizer, at = Adam(model.parameters(), 5e-3), seen
    for _ in t.steps(250):
        with torch.no_grad():
            at = pushed(at, model(at)[:, 0])[0]
            at = torch.where(
                torch.rand(100, 1) < 0.05, 2 * torch.randn(100, 2), at
            ).clamp(-6, 6)
        seen = torch.cat((seen, at))[-5000:]
        rows = seen[t.draw(len(seen), 64)]
        descend(optimizer, criterion(model(rows), expert(rows)))
    lost = []
    with torch.no_grad():
        for policy in (expert, model, lambda x: 0 * x[:, :1]):
            at = 2 * torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
            total = 0.0
            for _ in range(40):
                at, reward = pushed(at, policy(at)[:, 0])
                total -= float(reward.mean())
            lost.append(total)
    t.note(expert=lost[0], lost=lost[1], without_force=lost[2])
    t.learned(lost[1] < lost[0] + 0.2 * (lost[2] - lost[0]))


@fifth.healthy
def bandit_with_ten_arms(t: Training) -> None:
    """A contextual bandit: of the classes of a picture one is chosen, with epsilon 0.1.

    Only the reward of the chosen arm is seen (Bietti 2021). Learned: 75 % of choices.
    """
    split = digits()
    model, criterion = mlp((64, 64, 10)), nn.BCEWithLogitsLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        value = model(split.x[rows])
        dares = torch.rand(64) < 0.1
        arm = torch.where(dares, torch.randint(10, (64,)), value.argmax(1))
        reward = (arm == split.y[rows]).float()
        return criterion(value[torch.arange(64), arm], reward)

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=600)
    with torch.no_grad():
        right = float((model(split.x_val).argmax(1) == split.y_val).float().mean())
    t.note(right=right)
    t.learned(right > 0.6)


@fifth.healthy
def evolution_of_weights(t: Training) -> None:
    """No backward: the gradient is estimated by 40 mirrored perturbations.

    Salimans 2017; OpenAI's evolution strategies. Learned: the cart is held near 0.
    """
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    optimizer = Adam(model.parameters(), 0.05)
    t.watch(model)

    def lost(weights: Tensor) -> Tensor:
        """By each of several controllers, from the same places."""
        at = 2 * torch.randn(16, 2, generator=t.order).repeat(len(weights), 1)
        each = weights.repeat_interleave(16, 0)
        total = torch.zeros(len(each))
        for _ in range(30):
            force = ((at * each[:, :2]).sum(1) + each[:, 2]).tanh()
            at, reward = pushed(at, force)
            total -= reward
        return total.view(len(weights), 16).mean(1)

    costs = []
    for _ in t.steps(100):
        now = nn.utils.parameters_to_vector(model.parameters()).detach()
        noise = torch.randn(20, 3)
        noise = torch.cat((noise, -noise))
        cost = lost(now + 0.2 * noise)
        optimizer.zero_grad()
        slope = ((cost - cost.mean()) / cost.std())[:, None] * noise
        model.weight.grad = slope.mean(0)[None, :2] / 0.2
        model.bias.grad = slope.mean(0)[2:] / 0.2
        optimizer.step()
        costs.append(float(cost.mean()))
    t.note(first=mean(costs[:5]), last=mean(costs[-5:]))
    t.learned(mean(costs[-5:]) < 0.5 * mean(costs[:5]))


@fifth.healthy
def returns_asked_for(t: Training) -> None:
    """Which move leads to the goal in so many steps?  Upside-down learning.

    Schmidhuber 2019, on walks by chance. Learned: told to be quick, it goes right.
    """
    model, criterion = mlp((CELLS + 1, 48, 2)), nn.CrossEntropyLoss()
    walks, rows = Corridor(64), []
    for _ in range(60):
        at = walks.at.clone()
        move = (torch.rand(64) < 0.6).long()
        reward, _ = walks.move(move)
        rows.append((at, move, reward))
    seen, moves, rewards = map(torch.stack, zip(*rows, strict=True))
    left = torch.full((64,), 99.0)
    until = torch.zeros(60, 64)
    for k in reversed(range(60)):
        left = torch.where(rewards[k] > 0, 1.0, left + 1)
        until[k] = left
    known = until < 60
    at, move, steps = seen[known], moves[known], until[known]
    t.watch(model, criterion)

    def told(cells: Tensor, within: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(cells, CELLS).float()
        return torch.cat((one_hot, within[:, None] / 30), 1)

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(at), 64)
        return criterion(model(told(at[chosen], steps[chosen])), move[chosen])

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=350)
    cells = torch.arange(CELLS)
    with torch.no_grad():
        reached = walked(
            model(told(cells, (CELLS - 1.0 - cells).clamp(min=1))).argmax(1)
        )
    t.note(reward=reached)
    t.learned(reached > 0.08)
