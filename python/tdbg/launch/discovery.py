"""Finds the model, the optimizer and the loss of a training that knows no tdbg.

A root of the model is a module that the script calls outside of any other root and that
owns parameters of an optimizer.  The hook is made when the first root is called, before
the root has run.  When all known optimizers have stepped, the search ends: everything
but the hook is removed from torch.

Errors: none reach the script except ``TrainingStopped``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import shlex
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from tdbg.config.schedules import SaveConfig
from tdbg.errors import TrainingStopped
from tdbg.hooks.pytorch.losses import BackwardRoots
from tdbg.hooks.pytorch.module_hooks import registered_session
from tdbg.hooks.pytorch.module_tree import unwrapped
from tdbg.launch import LAUNCH_VARIABLE

__all__ = ["Discovery", "begin"]

_log = logging.getLogger("tdbg")
_OF_GLOBAL_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


def _end_quietly(before: Callable[..., Any]) -> Callable[..., Any]:
    """Make an ``excepthook`` that prints one line for a stop, and no traceback."""

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, TrainingStopped):
            sys.stderr.write(f"tdbg: stopped at step {error.step}: {error.reason}\n")
        else:
            before(kind, error, trace)

    return hook


def begin() -> None:
    """Start the search in this process; torch has just been imported."""
    sys.excepthook = _end_quietly(sys.excepthook)
    settings = json.loads(os.environ[LAUNCH_VARIABLE])
    Discovery(settings).start()


class Discovery:
    """Searches for the model, the loss and the optimizers of a script.

    Args:
        settings: ``out_dir``, ``rules``, ``include_collections``, ``save_interval``,
            ``statistics_interval``; all but the first may be missing.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._hook: Any = None
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._waiting: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._roots: list[weakref.ref[nn.Module]] = []
        self._has_loss = False
        self._handles: list[Any] = []
        self._backward: BackwardRoots | None = None
        self._make: Callable[..., None] | None = None
        self._filter: Any = None

    def start(self) -> None:
        """Begin to search."""
        make = self._make = Optimizer.__init__
        me = self

        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            me._optimizers.add(optimizer)
            me._waiting.add(optimizer)

        functools.update_wrapper(init, make)
        Optimizer.__init__ = init  # type: ignore[method-assign, assignment]
        self._handles = [
            register_module_forward_pre_hook(self._called),
            register_optimizer_step_post_hook(self._stepped),
        ]
        # Compiled modules warn of hooks on all modules, but these ones are harmless.
        warnings.filterwarnings("ignore", message=_OF_GLOBAL_HOOKS)
        self._filter = warnings.filters[0]

    # ---- called by torch -----------------------------------------------------

    def _called(self, module: nn.Module, _: Any) -> None:
        """Torch calls this before every call of a module."""
        if is_compiling() or os.getpid() != self._pid:
            return
        try:
            if isinstance(module, _Loss):
                self._found_loss(module)
            elif self._is_root(module):
                self._found_root(module)
        except TrainingStopped:
            raise
        except Exception as error:
            self._give_up(error)

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """Torch calls this after every step of an optimizer."""
        self._waiting.discard(optimizer)
        if self._hook is not None and not self._waiting:
            self._stop_looking()

    # ---- roots and losses ----------------------------------------------------

    def _is_root(self, module: nn.Module) -> bool:
        if not self._optimizers:
            return False
        ours = {id(parameter) for parameter in module.parameters()}
        for each in self._roots:
            root = each()
            if root is not None:
                ours -= {id(parameter) for parameter in root.parameters()}
        return any(
            id(parameter) in ours
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def _found_root(self, module: nn.Module) -> None:
        self._roots.append(weakref.ref(module))
        inside = unwrapped(module)
        if registered_session(inside) is not None:
            if self._hook is None:
                self._give_up("the script has a hook of its own, which goes on")
            return
        if self._hook is None:
            self._hook = self._make_hook(module)
            self._backward = BackwardRoots(self._begins_at)
            atexit.register(self._print_next_step)
        else:
            self._hook.register_module(module)
        if inside is module:
            # The hook just put on the root only sees its next call; this one has begun.
            self._hook.begin_call(inside)

    def _make_hook(self, module: nn.Module) -> Any:
        from tdbg import pytorch

        given = self._settings
        intervals = {
            name: given[name]
            for name in ("save_interval", "statistics_interval")
            if given.get(name) is not None
        }
        hook = pytorch.watch(
            module,
            out=given["out_dir"],
            rules=None if given.get("rules") is None else given["rules"],
            save_config=SaveConfig(**intervals) if intervals else None,
        )
        for name in given.get("include_collections") or ():
            collection = hook.get_collection(name)
            if given.get("save_interval") is not None:
                collection.reduction_config = pytorch.ReductionConfig(
                    save_raw_tensor=True
                )
            hook.add_collection(collection)
        return hook

    def _found_loss(self, module: nn.Module) -> None:
        if self._hook is not None:
            self._has_loss = True
            self._hook.register_loss(module)

    def _begins_at(self, root: torch.Tensor) -> None:
        """A backward pass begins; record its root as the loss if no module is one."""
        if not self._has_loss and os.getpid() == self._pid:
            self._hook.record_tensor_value("loss", root)

    # ---- the end -------------------------------------------------------------

    def _stop_looking(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        with contextlib.suppress(ValueError):  # The script has reset the filters.
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        if self._make is not None:
            Optimizer.__init__ = self._make  # type: ignore[method-assign]
            self._make = None
        if self._has_loss and self._backward is not None:
            self._backward.remove()

    def _give_up(self, why: object) -> None:
        _log.warning("tdbg captures nothing: %s", why)
        self._stop_looking()
        if self._backward is not None:
            self._backward.remove()

    def _print_next_step(self) -> None:
        if os.getpid() == self._pid and os.environ.get("RANK", "0") == "0":
            out = self._settings["out_dir"]
            quoted = shlex.quote(str(out))
            sys.stderr.write(f"tdbg: the run is in {out}; next: tdbg check {quoted}\n")
