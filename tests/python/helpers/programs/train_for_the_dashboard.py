"""Trains on digits until somebody stops it, slowly: its argument is the run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from tdbg.errors import TrainingStopped
from tdbg.pytorch import Hook, SaveConfig
from torch_helpers import parts, train

torch.set_num_threads(1)
model, criterion, optimizer, batches = parts()
hook = Hook(
    Path(sys.argv[1]),
    save_config=SaveConfig(save_interval=10**6, statistics_interval=1),
    include_collections=["weights", "losses"],
    min_free_bytes=0,
)
with hook:
    hook.register_module(model)
    hook.register_loss(criterion)
    deadline = time.monotonic() + 240
    try:
        while time.monotonic() < deadline:
            train(model, criterion, optimizer, batches, 1)
            time.sleep(0.03)
    except TrainingStopped as stop:
        print(f"stopped: {stop.reason}")
