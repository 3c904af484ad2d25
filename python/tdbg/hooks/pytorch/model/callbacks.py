"""What all callables that tdbg registers on a model have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tdbg.capture.session import Session

__all__ = ["Callback", "Inert"]


class Inert:
    """Something on a model that is left out of the model's copies.

    A copied or pickled model must neither be captured nor need tdbg when it is
    loaded, so in the copy stands a callable of the standard library that does nothing.
    """

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Callback(Inert):
    """A hook of a module that stays where it is, and is not in copies of it.

    Attributes:
        puts_back: Whether it puts back what was taken off: what stands beside it must
            stay, for PyTorch has begun to call them all when it does.
    """

    __slots__ = ("__weakref__", "session")
    puts_back = False

    def __init__(self, session: Session) -> None:
        self.session = session
