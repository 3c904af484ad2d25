"""A classifier of handwritten digits, of which one batch is not normalized.

    python -m examples.notebook.training runs/digits

What happens to it: at one step the pixels of a batch are a hundred times as bright as
those of all others, as where a file holds bytes and the others floats.  The loss
jumps, the largest gradient of the run goes through all layers, and the training
recovers.
"""

from __future__ import annotations

import os
import sys
import threading

import torch
from sklearn.datasets import load_digits

import tdbg
import tdbg.pytorch as td

STEPS, BATCH = 400, 64
BRIGHT, FACTOR = 170, 100.0


def train(path: str | os.PathLike[str], steps: int = STEPS, pause: float = 0.0) -> None:
    """Train, and leave a run.

    Args:
        path: Directory of the run.
        steps: How many steps.
        pause: Seconds to wait after each step, for who watches it live.
    """
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    widths = [64, 96, 96, 64, 48, 32]
    layers: list[torch.nn.Module] = []
    for i in range(len(widths) - 1):
        layers += [torch.nn.Linear(widths[i], widths[i + 1]), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 10))
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    done = threading.Event()
    watched = td.Hook(
        path,
        include_collections=["weights", "biases", "gradients", "losses"],
        save_config=tdbg.SaveConfig(save_interval=1),
        save_histogram=True,
    )
    with watched as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        hook.register_optimizer(optimizer)
        for step in range(steps):
            chosen = torch.randint(len(images), (BATCH,))
            batch = images[chosen] * (FACTOR if step == BRIGHT else 1.0)
            loss = criterion(model(batch), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            done.wait(pause)


if __name__ == "__main__":
    train(sys.argv[1])
