"""What the comparison of replicas costs each step, on one rank.

    python -m benchmarks.hooks.replicas [--device cpu] [--quick]

Each model gets the calls that the hook makes before each step of an optimizer.  After
the first 2,048 calls, which have the looks at powers of two, the processor time of the
next 2,048 is measured, in all threads: one of them is a look.  The first 2,048 are told
as well.  The store of the ranks is in memory.  The model is in a wrapper that reduces
gradients, which the pass over all objects that begins a training has met.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import tdbg.pytorch as td
from benchmarks._harness import Report, Table, check, check_equal, options
from tdbg.capture.replica_check import EVERY, RankGroup
from tdbg.hooks.pytorch.capture.replicas import ReplicaTensors
from tdbg.hooks.pytorch.model.process_objects import living

#: Widths of the layers of each model, and how many layers there are.
MODELS = {"small": (64, 4), "100 tensors": (64, 50), "10 M elements": (1024, 10)}
STEP_SECONDS = 0.010
COLUMNS = (
    "model",
    "tensors",
    "elements",
    "first 2,048 steps, us a step",
    "then, us a step",
    "share of a 10 ms step",
)


class Store:
    """A store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.look = self.values.get
        self.post = self.values.__setitem__

    def settle(self, key: str, value: str) -> str:
        """Return the value."""
        return self.values.setdefault(key, value.encode()).decode()

    def keep_pace(self) -> bool:
        """Return that no device works asynchronously."""
        return False


def measure(model: nn.Module, folder: Path, every: int) -> tuple[float, float]:
    """Return seconds a step, of the first steps and of those that follow."""
    wrapped = DistributedDataParallel(model)
    hook = td.Hook(folder, include_collections=[], min_free_bytes=0)
    hook.register_module(wrapped)
    check(wrapped in living(DistributedDataParallel), "the wrapper is met")
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    store = Store()
    ranks = RankGroup(store, 0, 1, leads=True)
    replicas = ReplicaTensors(hook._session, ranks, hook._module_captures)
    seconds = [_timed(replicas, every) for _ in range(2)]
    check(not replicas._check.is_over, "the store answers")
    replicas._check.close()
    prints = {key: value for key, value in store.values.items() if "print" in key}
    check(prints, "prints were posted")
    hook.close()
    check_equal(hook.counters()["internal_errors"], 0, "errors inside")
    return seconds[0] / every, seconds[1] / every


def _timed(replicas: Any, n: int) -> float:
    start = time.process_time()
    for _ in range(n):
        replicas.optimizer_begins()
    return time.process_time() - start


def main() -> None:
    """Measure each model."""
    parser = options(__doc__)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    store: Any = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group(store=store, rank=0, world_size=1)
    table = Table("replicas", COLUMNS)
    for name, (width, layers) in MODELS.items():
        if given.quick and width > 64:
            continue
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        model.to(given.device)
        with tempfile.TemporaryDirectory() as folder:
            first, then = measure(model, Path(folder) / "run", EVERY)
        sizes = [each.numel() for each in model.parameters()]
        table.add(
            name,
            len(sizes),
            f"{sum(sizes):,}",
            f"{first * 1e6:.2f}",
            f"{then * 1e6:.2f}",
            f"{then / STEP_SECONDS:.3%}",
        )
    distributed.destroy_process_group()
    Report("hooks/replicas", given, tables=[table]).save()


if __name__ == "__main__":
    main()
