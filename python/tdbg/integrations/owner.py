"""The hook of a trainer's callback: who makes, feeds and closes it, and notes."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tdbg.config import resolve
from tdbg.config.options import is_disabled
from tdbg.errors import ConfigurationError
from tdbg.hooks.framework import make_policy
from tdbg.modes import TRAIN
from tdbg.pytorch import Hook
from tdbg.run.observations import Fault, Observation

__all__ = ["HookOwner", "TrainerNotes"]


class TrainerNotes:
    """What is noted of a trainer, in the run of its hook.

    Args:
        hook: The hook of the training under way, or None: nothing is noted.

    Attributes:
        hook: The same.
    """

    def __init__(self, hook: Hook | None = None) -> None:
        self.hook = hook

    def keeps_best(self, by: str, monitor: str) -> None:
        """Note that the trainer keeps the best model, and by which metric."""
        if self.hook is not None:
            words = {"monitor": monitor}
            seen = Observation(Fault.BEST_KEPT, 0, (by,), {}, words)
            self.hook._session.observe(seen)

    def observe(
        self, fault: Fault, name: str, numbers: dict[str, float], words: dict[str, str]
    ) -> None:
        """Note a fault of what the trainer was told to do."""
        if self.hook is not None:
            step = max(0, self.hook._session.latest_step(TRAIN)[0])
            seen = Observation(fault, step, (name,), numbers, words)
            self.hook._session.observe(seen)

    def is_evaluated_in_training(self, model: str, layers: str, times: int) -> None:
        """Note that evaluations found layers of a model in training mode.

        Dropout alone may be meant: it draws several answers.
        """
        is_named = "normalization" in layers
        numbers = {"evaluations": float(times), "named": float(is_named)}
        self.observe(Fault.EVALUATED_IN_TRAINING, model, numbers, {"layers": layers})

    def __getstate__(self) -> dict[str, Any]:
        # Another process has a training of its own.
        return {**vars(self), "hook": None}


class HookOwner(TrainerNotes):
    """Makes a hook when a training begins, and closes it when it ends.

    Args:
        out_dir: The run directory.
        options: Keyword arguments of the hook.

    Attributes:
        hook: The hook of the training under way, or None.

    Raises:
        ConfigurationError: If an option can never work.
    """

    def __init__(
        self, out_dir: str | os.PathLike[str], options: Mapping[str, Any]
    ) -> None:
        if options.get("on_stop", "flag") != "flag":
            msg = "on_stop: the trainer stops by its own flag, so use 'flag'"
            raise ConfigurationError(msg)
        super().__init__()
        self._out_dir = os.fspath(out_dir)
        self._options = {**options, "on_stop": "flag"}
        self._counters: dict[str, Any] | None = None
        self._recorded: dict[str, Any] = {}
        # A bad option raises now, not when the training begins.
        if not is_disabled():
            make_policy(resolve({"out_dir": self._out_dir, **self._options}))

    def open(self, model: nn.Module) -> Hook:
        """Make the hook of a training that begins, and register its model."""
        if self.hook is None:
            self.hook = Hook(self._out_dir, **self._options)
            if self._counters is not None:
                self.hook.load_state_dict(self._counters)
            self.hook._follow_arguments_of_losses()
        self.hook.register_module(model)
        return self.hook

    def close(self, error: BaseException | None = None) -> None:
        """Close the hook at the end of the training, which *error* may have caused."""
        hook, self.hook = self.hook, None
        self._recorded.clear()
        if hook is not None:
            self._counters = hook.state_dict()
            hook.__exit__(None if error is None else type(error), error, None)

    def counters(self) -> dict[str, Any] | None:
        """Return the counters of steps, for a checkpoint."""
        return self._counters if self.hook is None else self.hook.state_dict()

    def resume(self, counters: Mapping[str, Any]) -> None:
        """Continue from the counters of a checkpoint."""
        self._counters = dict(counters)
        if self.hook is not None:
            self.hook.load_state_dict(counters)

    def record_metrics(self, metrics: Mapping[str, Any], *, are_new: bool) -> None:
        """Record the numbers in *metrics* as scalars.

        Args:
            metrics: The metrics that the trainer has logged.
            are_new: Whether to record all of them; otherwise only those that are other
                objects than at the last call.
        """
        if self.hook is None:
            return
        for name, value in metrics.items():
            if not are_new and self._recorded.get(name) is value:
                continue
            self._recorded[name] = value
            is_number = isinstance(value, numbers.Real)
            if is_number or (torch.is_tensor(value) and value.numel() == 1):
                self.hook.save_scalar(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_recorded": {}}
