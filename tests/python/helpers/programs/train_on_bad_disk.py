"""Trains again and again, each time while the disk of the run goes bad in another way.

Usage: train_on_bad_disk.py FOLDER CONTROL, under tests/shim/bad_disk.c.  Reads a JSON
case from each line of its input: what ``BadDisk.set`` takes and, in ``until``, the step
at which the disk is well again; or null for a training without tdbg.  Writes one JSON
result a line, when the process of that case has ended.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from bad_disk import BadDisk
from tdbg.run.requests import request_stop

STEPS, BAD_FROM = 50, 10


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def train(folder: Path, disk: BadDisk, case: dict[str, Any] | None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(200, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    hook, until = None, None
    heard = Heard()
    logging.getLogger("tdbg").addHandler(heard)
    if case is not None:
        until = case.pop("until", None)
        hook = td.Hook(
            folder,
            save_config=tdbg.SaveConfig(save_interval=1, statistics_interval=1),
            include_collections=["weights", "gradients"],
            on_stop="flag",
            min_free_bytes=0,
            queue_bytes=1 << 20,
        )
        hook.register_module(model)
    before = disk.of_first_thread
    for step in range(STEPS):
        if case is not None and step == BAD_FROM:
            disk.set(**case)
        if step == until:
            disk.heal()
            request_stop(folder, reason="the disk is well again")
            before += disk.of_first_thread - before  # Those of the request.
        optimizer.zero_grad()
        model(torch.full((4, 200), step / STEPS)).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)  # So that requests are looked for.
    by_training = disk.of_first_thread - before
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    result: dict[str, Any] = {"digest": digest.hexdigest()}
    if hook is not None:
        deadline = time.monotonic() + 60
        while until is not None and not hook.should_stop:
            model(torch.zeros(4, 200))
            assert time.monotonic() < deadline, "the request was not heard"
            time.sleep(0.01)
        result["stop"] = hook.stop_reason
        result["closed"] = hook.close(timeout=2.0)
        result["counters"] = hook.counters()
        result["by_training"] = by_training
        result["warnings"] = heard.texts
    return result


def main() -> None:
    folder, disk = Path(sys.argv[1]), BadDisk(Path(sys.argv[2]))
    torch.set_num_threads(1)
    # Loads here, once, what PyTorch loads at its first optimizer.
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    assert td.Hook  # Loads what it is made of.
    gc.freeze()
    for number, line in enumerate(sys.stdin):
        disk.heal()
        results, said = os.pipe()
        child = os.fork()
        if child == 0:
            result = train(folder / str(number), disk, json.loads(line))
            with os.fdopen(said, "w") as file:
                json.dump(result, file)
            sys.exit(0)  # As programs end: with all that is registered for it.
        os.close(said)
        with os.fdopen(results) as file:
            text = file.read()
        _, status = os.waitpid(child, 0)
        result = json.loads(text) if text else {}
        print(json.dumps(result | {"status": status}), flush=True)


if __name__ == "__main__":
    main()
