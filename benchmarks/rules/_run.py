"""A run of a thousand tensors for a thousand steps, with known faults in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tdbg import _core
from tdbg.collections import Role
from tdbg.modes import ModeKeys
from tdbg.run_directory import create_run

__all__ = ["build", "faults"]

N_ELEMENTS = 16
# Of every hundred tensors, in the order of execution.
SHARES = (
    (Role.WEIGHT, "layer{}.weight", 33),
    (Role.BIAS, "layer{}.bias", 5),
    (Role.OUTPUT, "layer{}.act_output_0", 29),
    (Role.GRADIENT, "gradient/layer{}.weight", 33),
)
N_UNITS = 64
# Layers that have unit summaries, every so many steps.
UNIT_LAYERS, UNIT_EVERY = 4, 5


def faults(n_tensors: int, n_steps: int) -> dict[tuple[str, str], int]:
    """What is wrong with it: rule and tensor, and since which step."""
    n_layers = SHARES[0][2] * n_tensors // 100
    return {
        ("ExplodingTensor", f"layer{n_layers // 2:03}.act_output_0"): n_steps * 7 // 10,
        ("VanishingGradient", "gradient/layer003.weight"): n_steps // 5,
        ("UnchangedTensor", f"layer{n_layers - 1:03}.weight"): n_steps // 2,
        ("LossNotDecreasing", "CrossEntropyLoss_output_0"): 0,
        ("DeadRelu", "layer001.act_output_0"): n_steps // 4,
    }


def build(path: Path, n_tensors: int, n_steps: int, seed: int = 0) -> None:
    """Write it, with the writer that a training has."""
    random = np.random.default_rng(seed)
    run = create_run(path)
    capture = _core.Capture(
        str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    names, roles = [], []
    for role, text, share in SHARES:
        for i in range(share * n_tensors // 100):
            names.append(text.format(f"{i:03}"))
            roles.append(role)
    names += ["CrossEntropyLoss_output_0", "MSELoss_output_0"]
    roles += [Role.LOSS, Role.LOSS]
    values = np.zeros((len(names), N_ELEMENTS), dtype=np.float32)
    ids = [
        capture.define(name, int(role), "float32", (N_ELEMENTS,))
        for name, role in zip(names, roles, strict=True)
    ]
    units = [
        capture.define(
            f"unit/layer{i:03}.act_output_0",
            int(Role.UNIT_SUMMARY),
            "uint64",
            (3, N_UNITS),
        )
        for i in range(UNIT_LAYERS)
    ]
    pointers = [values[i : i + 1].ctypes.data for i in range(len(names))]
    for step, rows in enumerate(_steps(random, names, roles, n_tensors, n_steps)):
        values[:] = rows
        capture.statistics(step, ids, pointers)
        if step % UNIT_EVERY == 0:
            for i, number in enumerate(units):
                summary = _units(random, dead=i == 1 and step >= n_steps // 4)
                capture.values(step, number, summary.ctypes.data)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
        if step % 50 == 49:
            capture.flush()
    if not capture.close():
        msg = "the run could not be written"
        raise OSError(msg)


def _steps(
    random: np.random.Generator,
    names: list[str],
    roles: list[Role],
    n_tensors: int,
    n_steps: int,
) -> Iterator[np.ndarray]:
    """The values of all tensors at each step."""
    role = np.array(roles)
    since = {(rule, names.index(t)): s for (rule, t), s in _rows(n_tensors, n_steps)}
    shape = (len(names), N_ELEMENTS)
    weights = (role == Role.WEIGHT) | (role == Role.BIAS)
    values = random.normal(size=shape).astype(np.float32)
    for step in range(n_steps):
        noise = random.normal(size=shape).astype(np.float32)
        before = values
        values = np.where(weights[:, np.newaxis], values + 1e-3 * noise, noise)
        values[role == Role.OUTPUT] = np.maximum(values[role == Role.OUTPUT], 0)
        values[role == Role.GRADIENT] *= 1e-2
        loss = 2.3 + 0.01 * noise[0, 0], 2.3 * np.exp(-step / n_steps) + 0.2
        values[role == Role.LOSS] = np.array(loss)[:, np.newaxis]
        for (rule, i), begin in since.items():
            if step >= begin and rule == "ExplodingTensor":
                values[i, 3] = np.nan
            if step >= begin and rule == "VanishingGradient":
                values[i] *= 1e-8
            if step >= begin and rule == "UnchangedTensor":
                values[i] = before[i]
        yield values


def _rows(n_tensors: int, n_steps: int) -> list[tuple[tuple[str, str], int]]:
    known = faults(n_tensors, n_steps)
    return [(which, step) for which, step in known.items() if which[0] != "DeadRelu"]


def _units(random: np.random.Generator, *, dead: bool) -> np.ndarray:
    """A unit summary: active, beyond and all, of each unit."""
    summary = np.zeros((3, N_UNITS), dtype=np.uint64)
    if not dead:
        summary[0] = random.integers(20, 60, N_UNITS)
    summary[2] = 64
    return summary
