"""Ways of watching a training on a device: tdbg's, and those of two peers.

The peers' packages are not on a machine without a network.  What is here does to a
tensor what they do, in plain PyTorch and NumPy, and stores it in memory only: less
than the packages do.
"""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu._model import Training
from tdbg.pytorch import Hook, ReductionConfig, SaveConfig

__all__ = ["WATCHERS", "Watcher"]

NEVER = 10**9
PARAMETERS: tuple[str, ...] = ("weights", "biases", "gradients")


class Watcher:
    """Watches nothing."""

    hook: Hook | None = None

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.folder = folder

    def close(self) -> None:
        """End it."""


class _Tdbg(Watcher):
    hook: Hook
    collections = PARAMETERS
    schedule = SaveConfig(save_interval=NEVER, statistics_interval=1)
    saves_values = False

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.hook = Hook(
            folder,
            include_collections=list(self.collections),
            save_config=self.schedule,
            reduction_config=ReductionConfig(save_raw_tensor=self.saves_values),
            min_free_bytes=0,
            queue_bytes=4 << 30 if training.n_parameters > 1 << 20 else 64 << 20,
        )
        self.hook.register_module(training.model)
        self.hook.register_loss(training.criterion)

    def close(self) -> None:
        self.hook.close(timeout=60.0)


class Rows(_Tdbg):
    """Rows of all weights and gradients at every step."""


class EveryRow(_Tdbg):
    """Rows of all activations too."""

    collections = (*PARAMETERS, "outputs")


class RawWeights(_Tdbg):
    """Raw weights every 100 steps."""

    collections = ("weights", "biases")
    schedule = SaveConfig(save_interval=100, statistics_interval=NEVER)
    saves_values = True


class _Peer(Watcher):
    """Looks at parameters around each forward and at gradients when they are made."""

    parameters = ""  # What their names begin with.
    gradients = "gradient/"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.kept: dict[str, Any] = {}
        self._handles: list[Any] = [self._around_forward(training.model)]
        for name, parameter in training.model.named_parameters():
            self._handles.append(parameter.register_hook(self._gradient(name)))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    @abc.abstractmethod
    def _around_forward(self, model: torch.nn.Module) -> Any:
        """A hook that calls ``_parameters``."""

    @abc.abstractmethod
    def _log(self, name: str, tensor: torch.Tensor) -> None:
        """Keep what the peer would."""

    def _parameters(self) -> None:
        for name, parameter in self.training.model.named_parameters():
            self._log(self.parameters + name, parameter.data)

    def _gradient(self, name: str) -> Any:
        return lambda gradient: self._log(self.gradients + name, gradient.data)


class WandbStyle(_Peer):
    """Histograms of parameters and gradients, as ``wandb.watch(log="all")`` takes them.

    For each tensor two reductions and a histogram of 64 bins, each fetched at once.
    """

    parameters = "parameters/"
    gradients = "gradients/"

    def _around_forward(self, model: torch.nn.Module) -> Any:
        return model.register_forward_hook(lambda *_: self._parameters())

    def _log(self, name: str, tensor: torch.Tensor) -> None:
        flat = tensor.reshape(-1)
        flat = flat[torch.isfinite(flat)]
        least, greatest = flat.min().item(), flat.max().item()
        counts = torch.histc(flat.float(), bins=64, min=least, max=greatest)
        self.kept[name] = (least, greatest, counts.cpu().tolist())


class SmdebugStyle(_Peer):
    """Twelve reductions of weights and gradients, as smdebug's hook takes them.

    Each tensor is brought to the host and reduced there by NumPy.
    """

    def _around_forward(self, model: torch.nn.Module) -> Any:
        return model.register_forward_pre_hook(lambda *_: self._parameters())

    def _log(self, name: str, tensor: torch.Tensor) -> None:
        array = tensor.detach().cpu().float().numpy()
        for which, values in (("", array), ("abs_", np.abs(array))):
            flat = values.reshape(-1)
            self.kept[f"{name}/{which}"] = (
                values.min(),
                values.max(),
                values.mean(),
                values.std(),
                np.linalg.norm(flat, ord=1),
                np.linalg.norm(flat, ord=2),
            )


WATCHERS: dict[str, type[Watcher]] = {
    "rows": Rows,
    "every row": EveryRow,
    "raw weights": RawWeights,
    "wandb.watch style": WandbStyle,
    "smdebug style": SmdebugStyle,
}
