"""Find out whether a backward pass, a function of autograd or a transform is calling.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch._C import (
    _current_graph_task_id,
    _FunctionBase,
    _get_tracing_state,
)
from torch._C import _functorch as transforms
from torch._functorch import pyfunctorch
from torch.autograd import Function

from tdbg.hooks.pytorch.device.tensors import is_recording

__all__ = [
    "NOT_IN_BACKWARD",
    "is_in_backward",
    "is_in_function",
    "is_in_transform",
    "is_traced",
    "outside_transforms",
]

NOT_IN_BACKWARD = -1
"""The result of ``_current_graph_task_id()`` if autograd is not calling."""


def is_in_backward() -> bool:
    """Return whether autograd is calling, to recompute a checkpointed forward."""
    return _current_graph_task_id() != NOT_IN_BACKWARD


_APPLY = getattr(Function.apply, "__func__", Function.apply).__code__


def is_in_function() -> bool:
    """Return whether the forward of an ``autograd.Function`` that can train is calling.

    Autograd disables gradients in such a forward, as an evaluation does, and its
    backward computes them: the adjoint method of a differential equation calls the
    model there, and a reentrant checkpoint.  PyTorch tells nobody, so this looks
    through the stack: ask only where gradients are disabled and the answer matters.
    """
    called: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if called is not None and frame.f_code is _APPLY:
            names = called.f_code.co_varnames
            context = called.f_locals.get(names[0]) if names else None
            if not isinstance(context, _FunctionBase):
                context = _running_context(frame.f_locals["cls"])
            # It leads nowhere if gradients were disabled before.
            return context is not None and bool(context.next_functions)
        called, frame = frame, frame.f_back
    return False


# The context that was found last; it is searched for once a call of a function.
_last_context: Callable[[], Any] = lambda: None  # noqa: E731


def _running_context(function: type) -> Any:
    """Return the context of a function that has a ``setup_context``.

    Its forward does not get the context, but autograd has made it just before, among
    the youngest objects, and knows of no output yet.  None: it was not found.
    """
    global _last_context  # noqa: PLW0603
    kind = getattr(function, "_backward_cls", None)
    context = _last_context()
    if type(context) is kind and not context._input_metadata:
        return context
    for generation in range(2):
        for each in gc.get_objects(generation=generation):
            if type(each) is kind and not each._input_metadata:
                _last_context = weakref.ref(each)
                return each
    return None


def is_in_transform() -> bool:
    """Return whether a transform of ``torch.func`` is calling."""
    return transforms.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """Return whether tensors have no numbers of their own.

    A transform or a tracer is calling, or a graph of a device is recorded.
    """
    return _get_tracing_state() is not None or is_in_transform() or is_recording()


@contextlib.contextmanager
def outside_transforms() -> Iterator[None]:
    """Run operations outside all transforms of ``torch.func`` meanwhile."""
    clear = getattr(pyfunctorch, "temporarily_clear_interpreter_stack", None)
    if clear is None or not is_in_transform():
        yield
    else:
        with clear():
            yield
