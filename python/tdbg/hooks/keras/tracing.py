"""Taps: tensors inside of a step of Keras, held while it is traced or run.

A step is traced a second time with taps: for the length of that trace the ``call`` of
layers and losses, the ``update_state`` of loss trackers and the ``apply`` of
optimizers are replaced, on the instances only and never on a class.  What they see is
not changed, only held, and returned by the traced function beside its logs.

Thread safety: taps belong to the thread that has made them, and see nothing of others.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tdbg.capture.naming import MAX_CALLS, MAX_TENSORS, activation_name, tensors_in
from tdbg.config.collections import Role

__all__ = ["Patches", "TapBackend", "Taps", "tap_key"]


def tap_key(name: str, role: Role) -> str:
    """The key by which taps hold the tensor of a name.

    Example:
        >>> tap_key("d1/kernel", Role.WEIGHT)
        '1 d1/kernel'
    """
    return f"{int(role)} {name}"


class TapBackend(Protocol):
    """The part of the Keras backend that taps need."""

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is a tensor of the backend, symbolic ones included."""

    def scope(self) -> Callable[[Any], bool]:
        """Return what says of a tensor whether the step that begins can return it.

        It cannot return what is made inside of a loop or a branch.
        """


class Patches:
    """Attributes of instances that are replaced, and put back in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[dict[str, Any], str, Any]] = []

    def set(self, owner: Any, attribute: str, value: Any) -> None:
        """Replace an attribute, without a word to Keras, which tracks attributes."""
        own = vars(owner)
        self._undo.append((own, attribute, own.get(attribute, self)))
        own[attribute] = value

    def wrap(
        self, owner: Any, attribute: str, make: Callable[[Callable[..., Any]], Any]
    ) -> None:
        """Replace a method by what *make* makes of it."""
        method = getattr(owner, attribute)
        self.set(owner, attribute, functools.wraps(method)(make(method)))

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            own, attribute, before = self._undo.pop()
            if before is self:
                own.pop(attribute, None)
            else:
                own[attribute] = before


class Taps:
    """The tensors of one trace of a step, or of one step that runs eagerly.

    Args:
        backend: Knows tensors.
        run: Calls a function of tdbg's, and lets no error out of it.
        may_return: As ``TapBackend.scope`` returns it; None: that of now.

    Attributes:
        tensors: What the step returns, by key.
    """

    def __init__(
        self,
        backend: TapBackend,
        run: Callable[..., Any],
        may_return: Callable[[Any], bool] | None = None,
    ) -> None:
        self._backend = backend
        self.run = run
        self._thread = threading.get_ident()
        self._may_return = may_return or backend.scope()
        self._calls: dict[str, int] = {}
        self.tensors: dict[str, Any] = {}

    def hold(self, key: str, tensor: Any) -> None:
        """Return this tensor from the step; of several of one key the first."""
        if key in self.tensors or not self.is_own_thread():
            return
        if self._may_return(tensor):
            self.tensors[key] = tensor

    def count_call(self, what: str) -> int:
        """Count a call; return how many of this name there were before."""
        call = self._calls.get(what, 0)
        if self.is_own_thread():
            self._calls[what] = call + 1
        return call

    def hold_all(
        self,
        path: str,
        direction: str,
        value: Any,
        key: Callable[[str, int, int], str | None],
    ) -> None:
        """Return the tensors of what a call was given, or answered.

        Args:
            path: What their names begin with.
            direction: ``input`` or ``output``.
            value: A structure with tensors.
            key: Makes the key from the name, the index of the tensor and the number
                of the call; None: it is not requested.
        """
        if not self.is_own_thread():
            return
        call = self.count_call(f"{path} {direction}")
        if call >= MAX_CALLS:
            return
        found = tensors_in(value, self._backend.is_tensor, MAX_TENSORS)
        for index, tensor in enumerate(found):
            name = activation_name(path, direction, index, call)
            requested = key(name, index, call)
            if requested is not None:
                self.hold(requested, tensor)

    def is_own_thread(self) -> bool:
        """Whether this thread has made the taps.

        Replicas are traced in threads of their own, and a trace waits within a step
        for those of the others, while its taps are set.
        """
        return threading.get_ident() == self._thread

    @contextmanager
    def patched(self, install: Callable[[Patches, Taps], None]) -> Iterator[None]:
        """Run a step with the patches that *install* sets."""
        patches = Patches()
        _under_way.append(patches)
        try:
            self.run(install, patches, self)
            yield
        finally:
            _end(patches)


_under_way: list[Patches] = []
_ended: list[Patches] = []


def _end(patches: Patches) -> None:
    """Undo patches when those have been undone that were set after them."""
    _ended.append(patches)
    while _under_way and any(each is _under_way[-1] for each in _ended):
        last = _under_way.pop()
        _ended[:] = [each for each in _ended if each is not last]
        last.undo()
