"""tdbg: a run, as a training writes it with the default codec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.reader.contenders import Array, Arrays
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run
from tdbg.trial import create_trial


class Format:
    codec = "auto"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run"

    def write(self, steps: Iterator[Arrays]) -> None:
        run = create_run(self.path)
        capture = _core.Capture(
            str(run.path),
            run_uuid=run.uuid,
            attempt_uuid=bytes(16),
            min_free_bytes=0,
            codec=self.codec,
        )
        ids: dict[str, int] = {}
        for step, arrays in enumerate(steps):
            for name, array in arrays.items():
                if name not in ids:
                    role = int(Role.WEIGHT)
                    ids[name] = capture.define(name, role, "float32", array.shape)
                capture.values(step, ids[name], array.ctypes.data)
            capture.end_step(step, ModeKeys.TRAIN.value, step)
        capture.close(60.0)

    def names(self) -> set[str]:
        return set(create_trial(self.path).tensor_names())

    def one(self, step: int, name: str) -> Array:
        return create_trial(self.path).tensor(name).value(step)

    def column(self, name: str) -> list[Array]:
        return list(create_trial(self.path).tensor(name).values().values())

    def everything(self) -> Iterator[Array]:
        trial = create_trial(self.path)
        with trial.no_refresh():
            names = trial.tensor_names()
            tensors = [trial.tensor(name) for name in names]
            for step in trial.steps():
                for tensor in tensors:
                    yield tensor.value(step)
