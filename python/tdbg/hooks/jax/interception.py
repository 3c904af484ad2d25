"""Interception of modules and functions, while a variant with taps is traced.

Thread safety: a trace belongs to its thread; what is replaced for the length of a
trace looks whether the thread that calls has one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from tdbg.hooks.jax.tracing import CaptureTrace

__all__ = ["Interception", "Interceptor", "imported_interceptors", "interceptor_of"]

# Those whose modules can be shown.
_LIBRARIES = ("flax.linen", "flax.nnx", "equinox")


Interceptor: TypeAlias = Callable[
    [CaptureTrace, Any], contextlib.AbstractContextManager[Callable[[Any], Any]]
]
"""Shows what modules of one library return, inside of the context that it makes of a
trace and the arguments of the step; yields what the outputs of the step go through."""


class Interception:
    """The interceptors of a hook; at first it has none."""

    def __init__(self) -> None:
        self._interceptors: list[Interceptor] = []

    def add(self, interceptor: Interceptor) -> None:
        """Add an interceptor, once."""
        if interceptor not in self._interceptors:
            self._interceptors.append(interceptor)

    @contextlib.contextmanager
    def of(self, trace: CaptureTrace, arguments: Any) -> Iterator[Callable[[Any], Any]]:
        """Intercept what is called inside."""
        with contextlib.ExitStack() as stack:
            all_restored = [
                stack.enter_context(each(trace, arguments))
                for each in self._interceptors
            ]

            def restored(outputs: Any) -> Any:
                for restore in all_restored:
                    outputs = restore(outputs)
                return outputs

            yield restored


def interceptor_of(model: Any) -> Interceptor | None:
    """Return what shows the modules of a model; None: nothing does.

    Its library is loaded already, since the model is an instance of one of its classes.
    """
    for library in _LIBRARIES:
        module = sys.modules.get(library)
        if module is not None and isinstance(model, module.Module):
            return _interceptor_of_library(library)
    return None


def imported_interceptors() -> list[Interceptor]:
    """Return what shows the modules of each library that the program has imported."""
    return [
        _interceptor_of_library(library)
        for library in _LIBRARIES
        if hasattr(sys.modules.get(library), "Module")
    ]


def _interceptor_of_library(library: str) -> Interceptor:
    from tdbg.hooks.jax import equinox, flax

    return {
        "flax.linen": flax.intercept_linen,
        "flax.nnx": flax.intercept_nnx,
        "equinox": equinox.intercept_equinox,
    }[library]
