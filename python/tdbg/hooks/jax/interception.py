"""Interception of modules and functions, while a variant with taps is traced.

Thread safety: a trace belongs to its thread; what is replaced for the length of a
trace looks whether the thread that calls has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tdbg.hooks.jax.tracing import CaptureTrace

__all__ = ["Interception", "Interceptor"]


class Interceptor(Protocol):
    """Shows what modules of one library return."""

    def __call__(
        self, trace: CaptureTrace, arguments: Any
    ) -> contextlib.AbstractContextManager[Callable[[Any], Any]]:
        """Intercept inside; yields what the outputs of the step go through."""


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
