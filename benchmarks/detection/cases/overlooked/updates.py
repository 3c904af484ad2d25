"""Mistakes in optimizers, and in how an agent chooses and explores."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from benchmarks.detection.kit.case import eleventh
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.harm import conclude, held_out
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


@eleventh.silent(
    Cause(
        r"weight.?decay|decoupled|\bL2\b|penalt|AdamW",
        r"AdamW|decoupled|weight.?decay|smaller",
    ),
    "AdamW's weight decay is given to Adam",
)
def decay_of_adamw_in_adam(t: Training) -> None:
    """``Adam(weight_decay=0.05)`` with a number that was meant for ``AdamW``.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization".
    Visible: the penalty outweighs the loss; accuracy stays below 92 %.
    """
    split, model = digits(), mlp([64, 64, 10])
    kind = Adam if t.sick else AdamW
    optimizer = kind(model.parameters(), lr=3e-3, weight_decay=0.05)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(300, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    accuracy = held_out(model, split.x_val, split.y_val)
    group = optimizer.param_groups[0]
    coupled = not group["decoupled_weight_decay"] and group["weight_decay"] >= 0.04
    t.note(accuracy=accuracy)
    conclude(t, fault=coupled, reached=accuracy > 0.92)


@eleventh.silent(
    Cause(
        r"argmax|greedy|sampl|explor|determinis|(most likely|same) action"
        r"|actions? .*(not (drawn|random)|always|largest)",
        r"sampl|Categorical|multinomial|explor",
    ),
    "the policy takes its most likely action instead of drawing one",
)
def most_likely_action_is_taken(t: Training) -> None:
    """REINFORCE with ``argmax`` of the probabilities while it learns.

    Source: asked often about first policy gradients (tutorial of pytorch: ``sample``).
    Visible: each action is the most likely one; most contexts stay without reward.
    """
    split, model = digits(), mlp([64, 64, 10])
    optimizer = Adam(model.parameters(), lr=5e-3)
    t.watch(model)
    greedy, taken = 0, 0
    for _, rows in t.batches(300, len(split.x), 128):
        policy = torch.distributions.Categorical(logits=model(split.x[rows]))
        action = policy.probs.argmax(1) if t.sick else policy.sample()
        reward = (action == split.y[rows]).float()
        loss = -(policy.log_prob(action) * (reward - 0.1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        greedy += int((action == policy.probs.argmax(1)).sum())
        taken += len(rows)
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, greedy=greedy / taken)
    conclude(t, fault=greedy == taken, reached=accuracy > 0.6, harms=False)


def walk(state: int, action: int, n: int) -> tuple[int, float, bool]:
    """A corridor: right at the end is the reward, left at the start a small one."""
    if action == 1:
        return (n - 1, 1.0, True) if state == n - 2 else (state + 1, 0.0, False)
    return (0, 0.05, True) if state == 0 else (state - 1, 0.0, False)


@eleventh.silent(
    Cause(r"epsilon|explor|greedy|random action", r"episode|slow|decay|epsilon"),
    "epsilon falls with every step instead of every episode",
)
def epsilon_falls_with_steps(t: Training) -> None:
    """``epsilon *= 0.97`` stands in the loop over steps, not over episodes.

    Source: github.com/shivaverma/Orbit/issues/10 ("Epsilon Decay is done every step
    instead of episode").
    Visible: after a tenth of the training nothing is random any more.
    """
    n, epsilon, state = 5, 1.0, 1
    eye = torch.eye(n)
    model = mlp([n, 32, 2])
    optimizer = Adam(model.parameters(), lr=5e-3)
    t.watch(model)
    memory: list[tuple[int, int, float, int, bool]] = []
    at_tenth = 1.0
    for step in t.steps(300):
        for _ in range(4):
            with torch.no_grad():
                action = int(model(eye[state]).argmax())
            if float(torch.rand(())) < epsilon:
                action = int(torch.randint(2, ()))
            after, reward, done = walk(state, action, n)
            memory.append((state, action, reward, after, done))
            state = 1 if done else after
            if t.sick or done:
                epsilon = max(0.02, epsilon * 0.97)
        if step == 30:
            at_tenth = epsilon
        chosen = torch.randint(len(memory), (64,)).tolist()
        s, a, r, s2, d = (
            torch.tensor(column)
            for column in zip(*(memory[i] for i in chosen), strict=True)
        )
        q = model(eye[s]).gather(1, a[:, None])[:, 0]
        with torch.no_grad():
            goal: Tensor = r + 0.9 * model(eye[s2]).max(1).values * ~d
        optimizer.zero_grad()
        nn.functional.mse_loss(q, goal).backward()
        optimizer.step()
    with torch.no_grad():
        right = int(model(eye).argmax(1)[: n - 1].sum())
    t.note(right=right, at_tenth=at_tenth)
    conclude(t, fault=at_tenth < 0.05, reached=right == n - 1, harms=False)
