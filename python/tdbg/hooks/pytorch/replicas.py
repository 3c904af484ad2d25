"""Copies of a module that ``DataParallel`` makes for each forward on several devices.

They share the hooks of the module itself and are called in threads of their own, all
at once.  The forward is that of the first; inside of them nothing is captured.

Thread safety: any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from torch import nn

from tdbg.capture.session import Session

__all__ = ["IS_REPLICA", "begin_replica", "end_replica"]

IS_REPLICA = "_is_replica"
"""The attribute that such a copy has of its own."""

_lock = threading.Lock()


def begin_replica(session: Session, replica: nn.Module, root: nn.Module | None) -> bool:
    """A copy of the root is about to be called; whether it is the first one."""
    with _lock:
        session.n_replicas += 1
        session.takes_activations = False
    return _is_first(replica, root)


def end_replica(session: Session, replica: nn.Module, root: nn.Module | None) -> bool:
    """Its call is over; whether it is the first one."""
    with _lock:
        session.n_replicas = max(0, session.n_replicas - 1)
        if not session.n_replicas:
            session.takes_activations = True
    return _is_first(replica, root)


def _is_first(replica: nn.Module, root: nn.Module | None) -> bool:
    """The copies lie on different devices, the first on that of the root."""
    if root is None:
        return False
    own = next(root.parameters(), None)
    return own is None or next(_parameters(replica), own).device == own.device


def _parameters(replica: nn.Module) -> Iterator[torch.Tensor]:
    """Of a copy they are no parameters any longer, but attributes."""
    for module in replica.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):
                yield value
