"""What a bin's steps say of the device: whether it had work all the time.

Thread safety: pure functions.
"""

from __future__ import annotations

import numpy as np

from tdbg.rules.profile import Bin, Rows
from tdbg.rules.table import Bools

# Of processes, where nobody could count them.
NO_COUNT = np.iinfo(np.uint32).max

__all__ = ["gpu_share", "has_gpu", "idle_share", "in_usual_steps", "of_training"]


def has_gpu(each: Bin) -> bool:
    """Return whether the training uses a GPU, as far as the bin tells."""
    if (each.usual_steps["gpu_ns"] >= 0).any():
        return True
    rows = each.tables["gpu"]
    of_run = (rows["run_processes"] > 0) & (rows["run_processes"] != NO_COUNT)
    return bool(np.any(of_run))


def gpu_share(each: Bin) -> float | None:
    """Return the share of the steps' time in which the device worked; None: unknown.

    Asynchronous work counts for the step that launched it, so that only sums over many
    steps mean something.
    """
    steps = each.usual_steps
    known = steps[steps["gpu_ns"] >= 0]
    total = int(known["duration_ns"].sum())
    if total <= 0 or 2 * len(known) < len(steps):
        return None
    return min(1.0, float(known["gpu_ns"].sum()) / total)


def idle_share(each: Bin) -> float | None:
    """Return what of the steps' time the host can save at most; None: unknown.

    All of it without a GPU; with one, the time in which the device has no work.
    """
    if not has_gpu(each):
        return 1.0
    share = gpu_share(each)
    return None if share is None else 1.0 - share


def of_training(rows: Rows) -> Rows:
    """Return the samples of devices that processes of the training use."""
    n = rows["run_processes"]
    found: Rows = rows[(n > 0) & (n != NO_COUNT) & np.isfinite(rows["busy"])]
    return found


def in_usual_steps(each: Bin, rows: Rows) -> Bools:
    """Return which samples lie in usual steps: not in evaluation, nor in a save."""
    inside = np.zeros(len(rows), bool)
    for worker in np.unique(each.steps["worker"]):
        own = each.steps["worker"] == worker
        ends, usual = each.steps["time"][own], each.is_judged[own]
        at = np.searchsorted(ends, rows["time"])
        known = (at < len(ends)) & (rows["time"] >= each.start_ns)
        inside[known] |= usual[at[known]]
    return inside
