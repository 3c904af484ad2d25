"""Finds the model, the optimizer and the loss of a training that knows no tdbg.

A root of the model is a module that is called from outside any other root and owns
parameters of an optimizer.  The hook is made when the first one is called, before
anything of it has run.  When all optimizers that are known have stepped, what looks
for roots is taken off, and nothing is left but the hook.

Errors: none reach the script, but ``TrainingStopped``.
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

from tdbg.config import SaveConfig
from tdbg.errors import TrainingStopped
from tdbg.hooks.pytorch.backward import BackwardRoots
from tdbg.hooks.pytorch.modules import is_tapped_by
from tdbg.hooks.pytorch.paths import unwrapped
from tdbg.launch import LAUNCH_VARIABLE

__all__ = ["Discovery", "begin"]

_log = logging.getLogger("tdbg")
_OF_GLOBAL_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


def _end_quietly(before: Callable[..., Any]) -> Callable[..., Any]:
    """An ``excepthook`` that tells of a stop in a line: the script is not at fault."""

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, TrainingStopped):
            sys.stderr.write(f"tdbg: stopped at step {error.step}: {error.reason}\n")
        else:
            before(kind, error, trace)

    return hook


def begin() -> None:
    """Look for a training in this process; torch has just been imported."""
    sys.excepthook = _end_quietly(sys.excepthook)
    settings = json.loads(os.environ[LAUNCH_VARIABLE])
    Discovery(settings).start()


class Discovery:
    """Looks until it has found.

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
        """Look from now on."""
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
        # A compiled module warns of hooks on all modules, which are ours, and harmless.
        warnings.filterwarnings("ignore", message=_OF_GLOBAL_HOOKS)
        self._filter = warnings.filters[0]

    # ---- called by torch -----------------------------------------------------

    def _called(self, module: nn.Module, _: Any) -> None:
        """Any module is about to be called."""
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
        """Any optimizer has stepped."""
        self._waiting.discard(optimizer)
        if self._hook is not None and not self._waiting:
            self._stop_looking()

    # ---- what it means -------------------------------------------------------

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
        if is_tapped_by(inside) is not None:
            if self._hook is None:
                self._give_up("the script has a hook of its own, which goes on")
            return
        if self._hook is None:
            self._hook = self._make_hook(module)
            self._backward = BackwardRoots(self._begins_at)
            atexit.register(self._say_goodbye)
        else:
            self._hook.register_module(module)
        if inside is module:
            # Its call has begun: the hook on it would come with the next one.
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
        """A backward pass begins; its root is the loss if no module is one."""
        if not self._has_loss and os.getpid() == self._pid:
            self._hook.record_tensor_value("loss", root)

    # ---- the end -------------------------------------------------------------

    def _stop_looking(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        with contextlib.suppress(ValueError):  # Somebody has reset them.
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

    def _say_goodbye(self) -> None:
        if os.getpid() == self._pid and os.environ.get("RANK", "0") == "0":
            out = self._settings["out_dir"]
            quoted = shlex.quote(str(out))
            sys.stderr.write(f"tdbg: the run is in {out}; next: tdbg check {quoted}\n")
