"""REINFORCE on a cart and a pole; the physics are written out, so that nothing need be installed."""
import argparse
import math
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="PyTorch REINFORCE example")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--episodes", type=int, default=180)
parser.add_argument("--seed", type=int, default=543)
args = parser.parse_args()


class CartPole:
    """The usual cart and pole, at most 100 steps."""

    def reset(self):
        self.s = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return np.array(self.s, dtype=np.float32)

    def step(self, action):
        x, v, th, w = self.s
        force = 10.0 if action == 1 else -10.0
        temp = (force + 0.05 * w * w * math.sin(th)) / 1.1
        acc_th = (9.8 * math.sin(th) - math.cos(th) * temp) / (0.5 * (4 / 3 - 0.1 * math.cos(th) ** 2 / 1.1))
        acc = temp - 0.05 * acc_th * math.cos(th) / 1.1
        self.s = [x + 0.02 * v, v + 0.02 * acc, th + 0.02 * w, w + 0.02 * acc_th]
        self.t += 1
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.2095
        return np.array(self.s, dtype=np.float32), 1.0, done or self.t >= 100


random.seed(args.seed)
torch.manual_seed(args.seed)
env = CartPole()


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(4, 64)
        self.affine2 = nn.Linear(64, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.affine2(x), dim=1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)


def select_action(state):
    probs = policy(torch.from_numpy(state).unsqueeze(0))
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R = 0
    returns = deque()
    for r in policy.rewards[::-1]:
        R = r + args.gamma * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    policy_loss = [-log_prob * R for log_prob, R in zip(policy.saved_log_probs, returns)]
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


lengths = []
for i_episode in range(args.episodes):
    state, done = env.reset(), False
    while not done:
        state, reward, done = env.step(select_action(state))
        policy.rewards.append(reward)
    lengths.append(len(policy.rewards))
    finish_episode()
    if i_episode % 30 == 29:
        print("Episode {}\tlength: {:.2f}".format(i_episode + 1, sum(lengths[-30:]) / 30))
