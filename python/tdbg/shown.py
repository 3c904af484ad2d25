"""How values look in a notebook, without their packages knowing who draws them.

A value that a notebook can show derives from ``Shown``.  Whoever draws registers a
function for its type; what registers is loaded when a value is first shown, and the
package ``tdbg`` says where it is, so that any import of tdbg is enough.

Thread safety: functions may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Shown", "drawn_by", "load_with", "register"]

_drawers: dict[tuple[type, str], Callable[[Any], Any]] = {}
_loaders: list[Callable[[], object]] = []


def load_with(loader: Callable[[], object]) -> None:
    """Call *loader* when the first value is shown; it registers what draws."""
    _loaders.append(loader)


def register(type_: type, draw: Callable[[Any], Any], kind: str = "html") -> None:
    """Let *draw* make the HTML, or another *kind* of picture, of values of a type."""
    _drawers[type_, kind] = draw


def drawn_by(value: object, kind: str = "html") -> Any:
    """Return what the function that is registered for a value's type returns.

    Raises:
        KeyError: If none is registered.
    """
    while _loaders:
        _loaders[-1]()
        _loaders.pop()
    return _drawers[type(value), kind](value)


class Shown:
    """The base of values that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        text: str = drawn_by(self)
        return text
