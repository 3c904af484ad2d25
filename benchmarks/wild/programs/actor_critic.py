"""Advantage actor-critic with shared layers. The task: walk along a corridor to the exit."""
import argparse
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="actor-critic example")
parser.add_argument("--gamma", type=float, default=0.95)
parser.add_argument("--episodes", type=int, default=250)
parser.add_argument("--seed", type=int, default=543)
args = parser.parse_args()

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)


class Rooms:
    """A 5 x 5 room; the exit is shown as a vector relative to the walker."""

    moves = [(0, 1), (1, 0), (0, -1), (-1, 0)]

    def reset(self):
        self.at, self.exit = rng.integers(0, 5, 2), rng.integers(0, 5, 2)
        while (self.at == self.exit).all():
            self.exit = rng.integers(0, 5, 2)
        self.t = 0
        return self._see()

    def _see(self):
        return np.concatenate([self.at / 4.0 - 0.5, (self.exit - self.at) / 4.0]).astype(np.float32)

    def step(self, action):
        self.at = np.clip(self.at + self.moves[action], 0, 4)
        self.t += 1
        found = bool((self.at == self.exit).all())
        return self._see(), 1.0 if found else -0.05, found or self.t >= 30


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(4, 64)
        self.action_head = nn.Linear(64, 4)
        self.value_head = nn.Linear(64, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        action_prob = F.softmax(self.action_head(x), dim=-1)
        state_values = self.value_head(x)
        return action_prob, state_values


model = Policy()
optimizer = optim.Adam(model.parameters(), lr=1e-2)
env = Rooms()


def select_action(state):
    probs, state_value = model(torch.from_numpy(state).float())
    m = Categorical(probs)
    action = m.sample()
    model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
    return action.item()


def finish_episode():
    R = 0
    policy_losses, value_losses, returns = [], [], []
    for r in model.rewards[::-1]:
        R = r + args.gamma * R
        returns.insert(0, R)
    for (log_prob, value), R in zip(model.saved_actions, torch.tensor(returns)):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, R.view(1)))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).mean() + torch.stack(value_losses).mean()
    loss.backward()
    optimizer.step()
    del model.rewards[:]
    del model.saved_actions[:]


def main():
    totals = []
    for i_episode in range(1, args.episodes + 1):
        state, total, done = env.reset(), 0.0, False
        while not done:
            state, reward, done = env.step(select_action(state))
            model.rewards.append(reward)
            total += reward
        totals.append(total)
        finish_episode()
        if i_episode % 50 == 0:
            print("Episode {}\tAverage reward: {:.2f}".format(i_episode, np.mean(totals[-50:])))


if __name__ == "__main__":
    main()
