"""Find out whether a backward pass or a transform is calling.

Thread safety: pure functions.  Errors: none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._C import _current_graph_task_id
from torch._C import _functorch as transforms
from torch._functorch import pyfunctorch

__all__ = [
    "NOT_IN_BACKWARD",
    "is_in_backward",
    "is_in_transform",
    "outside_transforms",
]

NOT_IN_BACKWARD = -1
"""The result of ``_current_graph_task_id()`` if autograd is not calling."""


def is_in_backward() -> bool:
    """Return whether autograd is calling, to recompute a checkpointed forward."""
    return _current_graph_task_id() != NOT_IN_BACKWARD


def is_in_transform() -> bool:
    """Return whether a transform of ``torch.func`` is calling."""
    return transforms.peek_interpreter_stack() is not None


@contextlib.contextmanager
def outside_transforms() -> Iterator[None]:
    """Run operations outside all transforms of ``torch.func`` meanwhile."""
    clear = getattr(pyfunctorch, "temporarily_clear_interpreter_stack", None)
    if clear is None or not is_in_transform():
        yield
    else:
        with clear():
            yield
