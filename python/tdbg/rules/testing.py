"""Records small runs, for tests of rules.

    with testing.Recording(tmp_path / "run") as run:
        for step in range(10):
            weight = np.full(8, 1000.0 if step == 6 else 1.0, np.float32)
            run.step({"fc.weight": weight, "gradient/fc.weight": weight * 0.01})
    (finding,) = testing.judge(run.path, LargeWeights(limit=50.0))
    assert finding.step == 6

Thread safety: a Recording belongs to one thread; ``judge`` is safe.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tdbg._core import Capture
from tdbg.config.collections import Role
from tdbg.config.messages import nearest
from tdbg.config.tensor_names import PREFIXES
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.rules.engine.engine import Engine, Report
from tdbg.rules.rule import Rule
from tdbg.rules.runner import Status
from tdbg.run.directory import create_run
from tdbg.run.findings import Finding

__all__ = ["Recording", "judge"]

# What else tells the role of a tensor by its name; if nothing does, it is a weight.
_PARTS = {
    "Loss_input_0": Role.PREDICTION,
    "Loss_input_1": Role.LABEL,
    "Loss_output": Role.LOSS,
    "_input_": Role.INPUT,
    "_output_": Role.OUTPUT,
    "bias": Role.BIAS,
}


class Recording:
    """Writes a run of one worker, step by step, from arrays.

    It records statistics and values of every array, as a hook that saves everything.

    Args:
        path: Directory for the run; it must not hold one yet.

    Attributes:
        path: The directory of the run.

    Raises:
        ConfigurationError: If there is a run at *path*.
        StorageError: If the run cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if (self.path / "RUN.json").exists():
            msg = f"there is a run at {path}; record into a new directory"
            raise ConfigurationError(msg)
        run = create_run(self.path)
        self._capture = Capture(
            str(run.path),
            run_uuid=run.uuid,
            attempt_uuid=uuid.uuid4().bytes,
            role="train",
            min_free_bytes=0,
        )
        self._step = 0
        self._mode_steps = dict.fromkeys(ModeKeys, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(
        self,
        tensors: Mapping[str, ArrayLike],
        *,
        mode: ModeKeys = ModeKeys.TRAIN,
        roles: Mapping[str, str] | None = None,
    ) -> int:
        """Record the next step.

        Args:
            tensors: Arrays by name, named as a hook names them: ``fc.weight``,
                ``gradient/fc.weight``, ``relu_output_0``, ``MSELoss_output_0``.
            mode: Mode of the step.
            roles: Roles of tensors whose names do not say it: ``{"x": "label"}``.

        Returns:
            The number of the step: 0, 1, 2 and so on.

        Raises:
            ConfigurationError: If there is no such role.
        """
        step, self._step = self._step, self._step + 1
        for name, content in tensors.items():
            role = _role(name, (roles or {}).get(name))
            self._save(step, name, np.asarray(content), role)
        mode_step = self._mode_steps[mode]
        self._mode_steps[mode] += 1
        self._capture.end_step(step, mode.value, mode_step)
        return step

    def flush(self) -> None:
        """Make everything recorded visible to readers."""
        self._capture.flush()

    def close(self) -> None:
        """End the run."""
        self._capture.close()

    def _save(self, step: int, name: str, array: NDArray[Any], role: int) -> None:
        number = self._capture.define(
            name, role, array.dtype.name, array.shape, item_size=array.dtype.itemsize
        )
        pointer, strides = array.ctypes.data, array.strides
        self._capture.statistics(step, [number], [pointer], [strides])
        self._capture.values(step, number, pointer, strides)


def judge(run: str | os.PathLike[str], *rules: Rule) -> list[Finding]:
    """Run rules over a run; return one finding for every episode, in its last state.

    The rules judge the run twice, as a whole and step by step, and must find the same:
    a verdict may depend only on the rows that a rule declares to read.

    Raises:
        AssertionError: If the two results differ, or if a rule fails.
        NotARun: If there is no run.
    """
    whole, cut = (_report(run, rules, max_window) for max_window in (None, 1))
    if whole.findings != cut.findings:
        msg = (
            "the findings depend on how steps are cut into windows: "
            f"{_short(whole)} of the whole, and {_short(cut)} step by step; "
            "declare lookback and head_rows, and read no other rows"
        )
        raise AssertionError(msg)
    return list(whole.findings)


def _report(
    run: str | os.PathLike[str], rules: tuple[Rule, ...], max_window: int | None
) -> Report:
    engine = Engine(run, rules, record=False, isolate=False, max_window=max_window)
    engine.poll()
    engine.poll_idle()
    report = engine.finish()
    for status in report.statuses:
        if status.status is Status.ERROR:
            msg = f"rule {status.rule} failed: {status.message}"
            raise AssertionError(msg)
    return report


def _short(report: Report) -> str:
    found = [f"{each.tensor} at {each.step}" for each in report.findings]
    return ", ".join(found) or "nothing"


def _role(name: str, given: str | None) -> int:
    if given is not None:
        if given.upper() not in Role.__members__:
            known = [role.lower() for role in Role.__members__]
            msg = f"there is no role {given!r}; {nearest(given, known)}"
            raise ConfigurationError(msg)
        return int(Role[given.upper()])
    for role, prefix in PREFIXES.items():
        if name.startswith(prefix):
            return int(role)
    for part, role in _PARTS.items():
        if part in name:
            return int(role)
    return int(Role.WEIGHT)
