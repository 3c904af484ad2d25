"""Warn if a model was compiled before it had hooks.

A graph has only the hooks that were there when the compiler traced it.  Without a
warning tdbg would silently capture nothing.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from tdbg.capture.recorder import StepContext
from tdbg.hooks.pytorch.model.module_tree import unwrapped

__all__ = ["SilentModel", "compiled_part", "warn_of"]

_log = logging.getLogger("tdbg")

# Steps of an optimizer without a forward that cannot be an accident.
_STEPS = 2


class _Root(Protocol):
    @property
    def name(self) -> str: ...


def warn_of(name: str) -> None:
    """Warn the user."""
    _log.warning(
        "tdbg sees nothing inside %s: it was compiled before it was registered, and a "
        "compiled graph has only the hooks that it was compiled with. Register the "
        "model before its first call, or call torch.compiler.reset() after you have "
        "registered it, so that it is compiled again",
        name,
    )


def compiled_part(
    root: nn.Module, seen: Sequence[str], unseen: Sequence[str]
) -> str | None:
    """Return the path of a part that was compiled before it had hooks, or None.

    The compiler has graphs of such a part, and no call inside it was reported.  A
    module that the program never calls stands beside others that were reported.

    Args:
        root: The registered module; its path is empty.
        seen: Paths of the modules whose calls were reported in this forward.
        unseen: Paths of the other modules.
    """
    for path in unseen:
        above = ""
        module: Any = root
        is_compiled = _was_compiled(root) or _is_any_inlined()
        for part in (*path.split("."), None):
            if is_compiled and not any(each.startswith(above) for each in seen):
                return above.removesuffix(".")
            module = None if part is None else module._modules.get(part)
            if module is None:
                break
            module = unwrapped(module)
            is_compiled = _was_compiled(module)
            above += f"{part}."
    return None


class SilentModel:
    """Notice that an optimizer steps while its model is never called.

    Args:
        roots: The registered modules; grows.

    Attributes:
        listens: Whether it still needs to hear of steps.
    """

    def __init__(self, roots: Sequence[_Root]) -> None:
        self._roots = roots
        self._n_steps = 0
        self.listens = True

    def step(self, context: StepContext | None) -> None:
        """Check the forwards of an optimizer's step, which are over."""
        if context is None or not self._roots:
            return
        if context.step.forwards:
            self.listens = False  # The model is called.
            return
        self._n_steps += 1
        if self._n_steps == _STEPS and _n_graphs():
            warn_of(self._roots[0].name)


def _n_graphs() -> int:
    """Return how many graphs the compiler has made in this process."""
    utilities: Any = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utilities, "counters", {})
    return int(counters["stats"]["unique_graphs"]) if "stats" in counters else 0


def _was_compiled(module: nn.Module) -> bool:
    """Return whether the compiler has graphs of the forward of a module's class."""
    if module._compiled_call_impl is not None:
        return True
    forward = getattr(type(module), "forward", None)
    return _has_graphs(getattr(forward, "__code__", None))


def _is_any_inlined() -> bool:
    """Return whether any module of PyTorch itself was compiled alone."""
    utilities: Any = sys.modules.get("torch._dynamo.external_utils")
    wrap = getattr(utilities, "wrap_inline", None)
    constants = getattr(getattr(wrap, "__code__", None), "co_consts", ())
    return any(_has_graphs(each) for each in constants if hasattr(each, "co_code"))


def _has_graphs(code: Any) -> bool:
    compiler: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    entries = getattr(compiler, "_debug_get_cache_entry_list", None)
    return code is not None and entries is not None and bool(entries(code))
