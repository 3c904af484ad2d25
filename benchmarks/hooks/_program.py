"""A training in the shape of a public script, whose blocks of steps are asked for.

It knows nothing of tdbg.  Each line that it reads is a number of steps; it does them
and answers in a line of JSON: the losses, and the seconds that they took.

    echo 100 | python benchmarks/hooks/_program.py 256 64
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A classifier of small images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 10)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.fc1(x))
        x = self.dropout(x)
        x = functional.relu(self.fc2(x))
        return functional.log_softmax(self.fc3(x), dim=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("width", type=int)
    parser.add_argument("batch_size", type=int)
    given = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    labels = torch.randint(0, 10, (64 * given.batch_size,))
    images = torch.randn(len(labels), 64) + torch.randn(10, 64)[labels]
    loader = DataLoader(
        TensorDataset(images, labels), batch_size=given.batch_size, shuffle=True
    )
    model = Net(given.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def steps() -> object:
        while True:
            for data, target in loader:
                optimizer.zero_grad()
                loss = functional.nll_loss(model(data), target)
                loss.backward()
                optimizer.step()
                yield loss.detach()

    training = steps()
    for line in sys.stdin:
        before = time.perf_counter(), time.thread_time(), time.process_time()
        losses = [next(training) for _ in range(int(line))]
        after = time.perf_counter(), time.thread_time(), time.process_time()
        wall, thread, process = (b - a for a, b in zip(before, after, strict=True))
        answer = {
            "losses": [float(loss) for loss in losses],
            "wall": wall,
            "thread": thread,
            "process": process,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
