"""A training whose loader's worker stands still at the sample that is asked for."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STANDS_AT = int(sys.argv[1])
METHOD = sys.argv[2]


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.001)
        if index == STANDS_AT:
            stand_still()
        return torch.full((3,), float(index)), torch.zeros(1)


def stand_still():
    time.sleep(100)


if __name__ == "__main__":
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(
        Samples(), batch_size=4, num_workers=1, multiprocessing_context=METHOD
    )
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
