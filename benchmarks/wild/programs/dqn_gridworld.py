import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn

SEED = 7
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)


class GridWorld:
    """4x4 frozen lake without the slipping. S: start, H: hole, G: goal."""

    MAP = "SFFF" "FHFH" "FFFH" "HFFG"

    def reset(self):
        self.pos, self.t = 0, 0
        return self.pos

    def step(self, a):
        r, c = divmod(self.pos, 4)
        if a == 0:
            c = max(c - 1, 0)
        elif a == 1:
            r = min(r + 1, 3)
        elif a == 2:
            c = min(c + 1, 3)
        else:
            r = max(r - 1, 0)
        self.pos = 4 * r + c
        self.t += 1
        tile = self.MAP[self.pos]
        reward = {"G": 1.0, "H": -1.0}.get(tile, -0.02)
        return self.pos, reward, tile in "GH" or self.t >= 40


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, s):
        return self.layers(nn.functional.one_hot(s, 16).float())


class ReplayBuffer:
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def push(self, *transition):
        self.buffer.append(transition)

    def sample(self, n):
        s, a, r, s2, d = zip(*random.sample(self.buffer, n))
        return (torch.tensor(s), torch.tensor(a), torch.tensor(r), torch.tensor(s2), torch.tensor(d, dtype=torch.float32))

    def __len__(self):
        return len(self.buffer)


env = GridWorld()
policy_net, target_net = QNetwork(), QNetwork()
target_net.load_state_dict(policy_net.state_dict())
target_net.eval()
optimizer = torch.optim.Adam(policy_net.parameters(), lr=1e-3)
memory = ReplayBuffer(5000)
gamma, batch_size, total = 0.95, 64, 3000

rewards, ep_reward, state = [], 0.0, env.reset()
for step in range(total):
    epsilon = max(0.05, 1.0 - step / 1500)
    if random.random() < epsilon:
        action = random.randrange(4)
    else:
        with torch.no_grad():
            action = policy_net(torch.tensor([state])).argmax(1).item()
    next_state, reward, done = env.step(action)
    memory.push(state, action, reward, next_state, done)
    state = next_state
    ep_reward += reward
    if done:
        rewards.append(ep_reward)
        ep_reward, state = 0.0, env.reset()

    if len(memory) >= 200 and step % 2 == 0:
        s, a, r, s2, d = memory.sample(batch_size)
        q = policy_net(s).gather(1, a.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            target = r + gamma * target_net(s2).max(1).values * (1 - d)
        loss = nn.functional.smooth_l1_loss(q, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 100 == 0:
        target_net.load_state_dict(policy_net.state_dict())
    if step % 500 == 499:
        print(f"step {step + 1}: {len(rewards)} episodes, mean reward {np.mean(rewards[-20:]):.3f}, eps {epsilon:.2f}")

state, done, ret = env.reset(), False, 0.0
while not done:
    with torch.no_grad():
        state, reward, done = env.step(policy_net(torch.tensor([state])).argmax(1).item())
    ret += reward
print(f"greedy return: {ret:.3f}")
