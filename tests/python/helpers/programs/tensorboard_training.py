"""A training that exports to TensorBoard, and ends as it is told: exit or kill."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import tdbg.pytorch as td


def main(how: str, run: Path) -> None:
    torch.manual_seed(0)
    model, criterion = nn.Linear(8, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = td.Hook(run, export_tensorboard=True, include_collections=["weights"])
    hook.register_module(model)
    hook.register_loss(criterion)
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(torch.randn(4, 8)), torch.randint(3, (4,))).backward()
        optimizer.step()
    hook.flush()
    if how == "kill":
        os.kill(os.getpid(), 9)
    child = os.fork()
    if child == 0:
        hook.close()
        note = {
            "has_exported": (run / "tensorboard").exists(),
            "failed_exports": hook.counters()["failed_exports"],
        }
        (run.parent / "child.json").write_text(json.dumps(note))
        os._exit(0)
    os.waitpid(child, 0)
    sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
