"""What callbacks have in common: they own the hook of a training."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tdbg.capture.opening import is_disabled
from tdbg.errors import ConfigurationError
from tdbg.pytorch import Hook
from tdbg.rules import needs_of
from tdbg.settings import resolve

__all__ = ["HookOwner"]


class HookOwner:
    """Makes a hook when a training begins, and closes it when it ends.

    Args:
        out_dir: The run directory.
        options: Keyword arguments of the hook.

    Attributes:
        hook: That of the training under way, or None.

    Raises:
        ConfigurationError: If something asked for can never work.
    """

    def __init__(
        self, out_dir: str | os.PathLike[str], options: Mapping[str, Any]
    ) -> None:
        if options.get("on_stop", "flag") != "flag":
            msg = "on_stop: the trainer is told to stop by its own flag, use 'flag'"
            raise ConfigurationError(msg)
        self._out_dir = os.fspath(out_dir)
        self._options = {**options, "on_stop": "flag"}
        self.hook: Hook | None = None
        self._counters: dict[str, Any] | None = None
        self._told: dict[str, Any] = {}
        # What is wrong with the options is said now, not when the training begins.
        if not is_disabled():
            config = resolve({"out_dir": self._out_dir, **self._options})
            config.policy(needs_of(config.rules))
            if config.exports_tensorboard:
                from tdbg.export.events import require_tensorboard

                require_tensorboard()

    def open(self, model: nn.Module) -> Hook:
        """The hook of the training that begins, with its model registered."""
        if self.hook is None:
            self.hook = Hook(self._out_dir, **self._options)
            if self._counters is not None:
                self.hook.load_state_dict(self._counters)
        self.hook.register_module(model)
        return self.hook

    def close(self, error: BaseException | None = None) -> None:
        """The training is over."""
        hook, self.hook = self.hook, None
        self._told.clear()
        if hook is not None:
            self._counters = hook.state_dict()
            hook.__exit__(None if error is None else type(error), error, None)

    def counters(self) -> dict[str, Any] | None:
        """Where the training is, for its checkpoint."""
        return self._counters if self.hook is None else self.hook.state_dict()

    def resume(self, counters: Mapping[str, Any]) -> None:
        """Go on from the counters of a checkpoint."""
        self._counters = dict(counters)
        if self.hook is not None:
            self.hook.load_state_dict(counters)

    def tell_metrics(self, metrics: Mapping[str, Any], *, anew: bool) -> None:
        """Record the numbers in *metrics* as scalars.

        Args:
            metrics: What the trainer has logged.
            anew: Whether all are new; otherwise those that are another object.
        """
        if self.hook is None:
            return
        for name, value in metrics.items():
            if not anew and self._told.get(name) is value:
                continue
            self._told[name] = value
            is_number = isinstance(value, numbers.Real)
            if is_number or (torch.is_tensor(value) and value.numel() == 1):
                self.hook.save_scalar(name, value)

    def __getstate__(self) -> dict[str, Any]:
        # Another process has a training of its own.
        return {**vars(self), "hook": None, "_told": {}}
