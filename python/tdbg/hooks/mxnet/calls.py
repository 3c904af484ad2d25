"""Methods of one object that are seen: the ``forward`` of a block, a trainer's update.

The method is replaced on the instance and never on its class.  Gluon's own hooks of
blocks would do for a forward, but for two things: they do not see a call that raises,
and ``hybridize`` warns of each block that has any.

Thread safety: the thread that calls the method.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, Protocol

__all__ = ["CallObserver", "SeenMethod", "see"]


class CallObserver(Protocol):
    """Is told of the calls of a method."""

    def begins(self, args: tuple[Any, ...]) -> None:
        """Note that the method is about to be called; may raise into the caller."""

    def ends(self, args: tuple[Any, ...], result: Any) -> None:
        """Note that the method has returned; may raise into the caller."""

    def fails(self) -> None:
        """Note that the method has raised; never raises itself."""


class SeenMethod:
    """Stands in for a method of an object, and tells an observer of its calls.

    In a copy of the object, or when it is unpickled, stands the method itself: a copied
    model is not captured, and needs no tdbg.
    """

    def __init__(self, owner: Any, name: str, observer: CallObserver) -> None:
        self._owner = weakref.ref(owner)
        self._name = name
        self._before = vars(owner).get(name)
        self.observer = observer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, and tell the observer before and after."""
        method = self._method()
        observer, given = self.observer, (*args, *kwargs.values())
        observer.begins(given)
        try:
            result = method(*args, **kwargs)
        except BaseException:
            observer.fails()
            raise
        observer.ends(given, result)
        return result

    def _method(self) -> Any:
        """Return the method itself, without the observer."""
        if self._before is not None:
            return self._before
        owner = self._owner()
        return getattr(type(owner), self._name).__get__(owner)

    def remove(self) -> None:
        """Put the method back, unless somebody has replaced it since."""
        owner = self._owner()
        if owner is None or vars(owner).get(self._name) is not self:
            return
        if self._before is None:
            del vars(owner)[self._name]
        else:
            vars(owner)[self._name] = self._before

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = self._owner()
        copied = memo.get(id(owner), owner)
        return types.MethodType(getattr(type(owner), self._name), copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner(), self._name)


def see(owner: Any, name: str, observer: CallObserver) -> SeenMethod:
    """Tell *observer* of the calls of a method of *owner* from now on."""
    seen = SeenMethod(owner, name, observer)
    vars(owner)[name] = seen
    return seen
