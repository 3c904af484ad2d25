"""smdebug: a trial, as its hook for PyTorch writes it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import torch
from smdebug.pytorch import Hook, SaveConfig
from smdebug.trials import Trial, create_trial

from benchmarks._harness import check
from benchmarks.reader.contenders import Array, Arrays


class Tensors(torch.nn.Module):
    """A module whose parameters are what is to be saved."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Format:
    prefix = f"{Tensors.__name__}_"  # That the hook puts before each name.

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run"

    def write(self, steps: Iterator[Arrays]) -> None:
        """In a process of its own: a second hook in one goes on with the first's."""
        context = multiprocessing.get_context("fork")
        child = context.Process(target=self._write, args=(steps,))
        child.start()
        child.join()
        check(child.exitcode == 0, "smdebug: writing")

    def _write(self, steps: Iterator[Arrays]) -> None:
        module, hook = Tensors(), None
        for arrays in steps:
            for name, array in arrays.items():
                value = torch.nn.Parameter(torch.from_numpy(array))
                setattr(module, name, value)
            if hook is None:
                every = SaveConfig(save_interval=1)
                hook = Hook(str(self.path), save_config=every, include_regex=[".*"])
                hook.register_module(module)
            module(torch.zeros(1))
        if hook is not None:
            hook.close()

    def open(self) -> Trial:
        return create_trial(str(self.path))

    def names(self) -> set[str]:
        return {
            name for name in self.open().tensor_names() if name.startswith(self.prefix)
        } - {f"{self.prefix}input_0", f"{self.prefix}output_0"}

    def one(self, step: int, name: str) -> Array:
        return self.open().tensor(self.prefix + name).value(step)

    def column(self, name: str) -> list[Array]:
        tensor = self.open().tensor(self.prefix + name)
        return [tensor.value(step) for step in tensor.steps()]

    def everything(self) -> Iterator[Array]:
        trial = self.open()
        tensors = [
            trial.tensor(name)
            for name in sorted(trial.tensor_names(regex=f"^{self.prefix}t[0-9]+$"))
        ]
        for step in trial.steps():
            for tensor in tensors:
                yield tensor.value(step)
