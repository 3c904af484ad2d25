"""Trains a GAN that knows no tdbg: two models, two optimizers, one of them compiled."""

from __future__ import annotations

import sys

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Generator(nn.Sequential):
    pass


class Critic(nn.Sequential):
    pass


generator = Generator(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
critic = Critic(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
if "--compile" in sys.argv:
    generator = torch.compile(generator, backend="eager")
criterion = nn.BCEWithLogitsLoss()
of_critic = torch.optim.Adam(critic.parameters(), lr=0.02)
of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
for _ in range(3):
    made = generator(torch.randn(8, 4))
    of_critic.zero_grad()
    real = criterion(critic(torch.randn(8, 2)), torch.ones(8, 1))
    (real + criterion(critic(made.detach()), torch.zeros(8, 1))).backward()
    of_critic.step()
    of_generator.zero_grad()
    criterion(critic(made), torch.ones(8, 1)).backward()
    of_generator.step()
print("weights", sum(p.sum().item() for p in critic.parameters()))
