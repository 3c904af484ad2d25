"""Agents that learn, but not from what they have done."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.optim import Adam

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.harm import conclude, held_out
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


@tenth.silent(
    Cause(
        r"(an)?other action|action\w* .*(not (those|the one|what|that)|twice|another"
        r"|second|than .*(executed|taken|done))|log.?prob\w* .*(other|another|not of"
        r"|unrelated|second)|sampl\w* (twice|again|a second)",
        r"same action|once|store|executed|taken|log_prob\(action",
    ),
    "the probability is that of another sample than the action done",
)
def probability_of_another_action(t: Training) -> None:
    """The action is sampled once to be done, and once more for its logarithm.

    The agent is shown a digit and gets 1 if it names it.
    Source: github.com/thu-ml/tianshou/issues/397 ("a different action may be sampled
    on the second time a forward is called").
    Visible: the rewards do not rise; actions and logarithms differ in most rows.
    """
    split = digits()
    policy = mlp([64, 64, 10])
    optimizer = Adam(policy.parameters(), lr=1e-2)
    t.watch(policy, optimizer=optimizer)
    baseline, agree = 0.1, 1.0

    def act(observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dist = Categorical(logits=policy(observation))
        action = dist.sample()
        chosen = dist.sample() if t.sick else action
        return action, dist.log_prob(chosen), dist.entropy()

    for _, rows in t.batches(300, len(split.x), 64):
        action, log_prob, entropy = act(split.x[rows])
        reward = (action == split.y[rows]).float()
        loss = -(log_prob * (reward - baseline)).mean() - 0.01 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            logs = policy(split.x[rows]).log_softmax(1)
            of_action = logs.gather(1, action[:, None])[:, 0]
            agree = float(((of_action - log_prob).abs() < 1e-4).float().mean())
        optimizer.step()
        baseline += 0.05 * (float(reward.mean()) - baseline)
    accuracy = held_out(policy, split.x_val, split.y_val)
    t.note(agree=agree, reward=baseline, accuracy=accuracy)
    conclude(t, fault=agree < 0.95, reached=accuracy > 0.5)


@tenth.silent(
    Cause(
        r"(memory|buffer|rollout|trajector|transition)\w* .*(clear|grow|old|again"
        r"|earlier"
        r"|previous|accumulat|stale|left over|larger)|on.?policy|off.?policy"
        r"|(earlier|old|previous) polic(y|ies)|(batch|input|rows?|update)\w* .*(grow"
        r"|larger|earlier (step|update|batch))",
        r"clear|empty|new (memory|buffer)|on.?policy|importance",
    ),
    "the memory of an on-policy agent is never cleared",
)
def memory_never_cleared(t: Training) -> None:
    """Each update learns from all that was ever done, by whatever policy.

    Source: github.com/tensorflow/agents/issues/227 ("PPO is an on-policy algorithm"),
    github.com/nikhilbarhate99/PPO-PyTorch/issues/16 (``clear_memory()``).
    Visible: the rows of an update are more from step to step.
    """
    split = digits()
    policy = mlp([64, 48, 10])
    optimizer = Adam(policy.parameters(), lr=1e-2)
    t.watch(policy, optimizer=optimizer)
    memory: list[tuple[Tensor, Tensor, Tensor]] = []
    n_learned = 0
    for _, rows in t.batches(150, len(split.x), 40, drop_last=True):
        states = split.x[rows]
        with torch.no_grad():
            actions = Categorical(logits=policy(states)).sample()
        rewards = (actions == split.y[rows]).float()
        memory.append((states, actions, rewards))
        seen, done, got = (torch.cat(part) for part in zip(*memory, strict=True))
        dist = Categorical(logits=policy(seen))
        advantage = got - got.mean()
        loss = -(dist.log_prob(done) * advantage).mean() - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n_learned = len(seen)
        if not t.sick:
            memory.clear()
    accuracy = held_out(policy, split.x_val, split.y_val)
    t.note(rows=n_learned, accuracy=accuracy)
    conclude(t, fault=n_learned > 40, reached=accuracy > 0.3, harms=False)


@tenth.silent(
    Cause(
        r"epsilon|explor|random (action|polic)|(action|polic)\w* .*(random|uniform|at "
        r"chance)",
        r"epsilon|decay|explor|anneal",
    ),
    "epsilon is never lowered, so every action is random",
)
def epsilon_never_falls(t: Training) -> None:
    """The agent explores to the end: nobody multiplies ``epsilon`` by its decay.

    Source: github.com/conditionWang/DRQN_Stock_Trading/issues/3 ("Epsilon is never
    changed ... the results will stay completely random"),
    github.com/nikitasrivatsan/DeepLearningVideoGames/issues/21.
    Visible: in the last steps the reward is that of a random agent.
    """
    split = digits()
    net = mlp([64, 64, 10])
    optimizer = Adam(net.parameters(), lr=5e-3)
    criterion = nn.SmoothL1Loss()
    t.watch(net, criterion, optimizer=optimizer)
    luck = random.Random(t.seed)
    epsilon, epsilon_min, epsilon_decay = 1.0, 0.05, 0.98
    rewards: list[float] = []
    replay: list[tuple[Tensor, int, float]] = []
    for _, rows in t.batches(300, len(split.x), 16, drop_last=True):
        with torch.no_grad():
            greedy = net(split.x[rows]).argmax(1).tolist()
        for row, best in zip(rows.tolist(), greedy, strict=True):
            action = luck.randrange(10) if luck.random() < epsilon else best
            reward = float(action == int(split.y[row]))
            rewards.append(reward)
            replay.append((split.x[row], action, reward))
        drawn = luck.sample(replay, min(64, len(replay)))
        states = torch.stack([s for s, _, _ in drawn])
        actions = torch.tensor([a for _, a, _ in drawn])
        targets = torch.tensor([r for _, _, r in drawn])
        values = net(states).gather(1, actions[:, None])[:, 0]
        optimizer.zero_grad()
        criterion(values, targets).backward()
        optimizer.step()
        if not t.sick:
            epsilon = max(epsilon_min, epsilon * epsilon_decay)
    last = sum(rewards[-640:]) / 640
    accuracy = held_out(net, split.x_val, split.y_val)
    t.note(epsilon=epsilon, reward=last, accuracy=accuracy)
    conclude(t, fault=epsilon > 0.9, reached=accuracy > 0.45, harms=False)
