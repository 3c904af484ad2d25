"""Trains on real digits, again and again, each time with another disk fault.

Usage: train_under_faults.py FOLDER, under tests/shim/io_fault.c.  Reads a JSON list
of cases from each line of its input: ``{"at": n, "errno": e, "forever": 0 or 1}``, or
null for a training without tdbg.  Writes one JSON result a line.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import tdbg
import tdbg.errors
import tdbg.pytorch as td

STEPS = 24
FLUSH_EVERY = 4
IMAGES, LABELS = load_digits(return_X_y=True)
INPUTS = torch.tensor(IMAGES, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
TARGETS = torch.tensor(LABELS)


def train(hook: Any) -> str:
    """Train a small CNN; returns a digest of its final parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8 * 36, 10),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    flushes = hook is not None
    for step in range(STEPS):
        batch = slice(step * 64, step * 64 + 64)
        optimizer.zero_grad()
        criterion(model(INPUTS[batch]), TARGETS[batch]).backward()
        optimizer.step()
        if flushes and step % FLUSH_EVERY == FLUSH_EVERY - 1:
            try:
                hook.flush(durable=True, timeout=1.0)
            except tdbg.errors.StorageError:
                flushes = False  # The disk is known to be bad: do not wait again.
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def run_case(folder: Path, case: dict[str, int] | None) -> dict[str, Any]:
    """What became of one training."""
    if case is None:
        return {"digest": train(None)}
    shim = ctypes.CDLL(None)
    shim.io_fault_calls.restype = ctypes.c_uint64
    shim.io_fault_failed.restype = ctypes.c_uint64
    prefix = ctypes.create_string_buffer(str(folder / "w").encode())
    at, error, forever = case["at"], case["errno"], case["forever"]
    shim.io_fault_arm(prefix, ctypes.c_uint64(at), error, forever)
    try:
        hook = td.Hook(
            folder,
            save_config=tdbg.SaveConfig(save_interval=1, statistics_interval=1),
            include_collections=["all"],
            min_free_bytes=0,
        )
    except tdbg.errors.StorageError:
        hook = None
    result: dict[str, Any] = {"digest": train(hook), "opened": hook is not None}
    if hook is not None:
        result["closed"] = hook.close()
        result["counters"] = hook.counters()
    result["calls"] = shim.io_fault_calls()
    result["failed"] = shim.io_fault_failed()
    return result


def main() -> None:
    torch.set_num_threads(1)
    # Loads here, once, what PyTorch loads at its first optimizer.
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    assert td.Hook  # Loads what it is made of.
    gc.freeze()
    for number, case in enumerate(
        case for line in sys.stdin for case in json.loads(line)
    ):
        # A process for each: faults must not reach into the next training.
        child = os.fork()
        if child == 0:
            result = run_case(Path(sys.argv[1]) / str(number), case)
            print(json.dumps(result), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            print(json.dumps({"status": status}), flush=True)


if __name__ == "__main__":
    main()
