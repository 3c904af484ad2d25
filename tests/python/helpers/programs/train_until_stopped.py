"""Trains on digits until somebody stops it: its argument is the run directory."""

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
save_config = SaveConfig(save_interval=10**6, statistics_interval=10**6)
with Hook(Path(sys.argv[1]), save_config=save_config, min_free_bytes=0) as hook:
    hook.register_module(model)
    hook.register_loss(criterion)
    deadline = time.monotonic() + 100
    try:
        while time.monotonic() < deadline:
            train(model, criterion, optimizer, batches, 10)
            time.sleep(0.01)
    except TrainingStopped as stop:
        print(f"stopped: {stop.reason}")
