"""Trains on digits and knows no tdbg.  Options: see below; prints what it got."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--loss", choices=["module", "function"], default="module")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--exit", type=int, default=0)
parser.add_argument("--child", action="store_true")
parser.add_argument("--wait", action="store_true")
parser.add_argument("--distributed", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(options.steps * 4, 64)
labels = torch.randint(10, (options.steps * 4,))
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
if options.distributed:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(
    TensorDataset(inputs, labels), batch_size=4, num_workers=options.workers
)
for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    if options.loss == "module":
        loss = criterion(output, y)
    else:
        loss = nn.functional.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
if options.child:
    command = [sys.executable, __file__, "--steps", "2"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
if options.wait:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
    print("waiting", flush=True)
    time.sleep(60)
if options.distributed:
    torch.distributed.destroy_process_group()
print("arguments", sys.argv[1:], "input", sys.stdin.read() if not os.isatty(0) else "")
sys.exit(options.exit)
