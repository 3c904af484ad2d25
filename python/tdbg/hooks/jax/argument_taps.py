"""Taps of the arrays that a step is called with: parameters, buffers, states.

Python could read these before the call, but would have to wait until the step before
has computed them, and so train one step after the other where the training does not.
The program of the step has them anyway, and reads them first, all in one call.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tdbg.capture.naming import buffer_name, optimizer_state_name
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.jax.arguments import Arguments
from tdbg.hooks.jax.names import parameter_role
from tdbg.hooks.jax.primitive import show_all

__all__ = ["ArgumentTaps", "named_arrays"]


class ArgumentTaps:
    """The arguments that the programs of one step show.

    Attributes:
        entries: Those of them that a step captures.
    """

    def __init__(self) -> None:
        self.entries: set[TensorEntry] = set()
        self._n_showing = self._n_others = 0

    @property
    def are_shown(self) -> bool:
        """Whether every program shows them; programs on several devices do not."""
        return self._n_showing > 0 and self._n_others == 0

    def lowered(self, *, shows: bool) -> None:
        """Note another program of JAX, and whether it shows the arguments."""
        if shows:
            self._n_showing += 1
        else:
            self._n_others += 1

    def show(self, arrays: list[tuple[int, Any]], ticket: Any) -> Any:
        """Return *ticket*, with which the arrays have been shown.

        What is shown with the ticket that is returned depends on it, and so does what
        is computed of that: memory of parameters that the step takes over
        (``donate_argnums``) is read before it is written, without a copy.

        Args:
            arrays: Numbers of taps, and what each of them shows.
            ticket: Of the step.
        """
        if not arrays:
            return ticket
        taps, values = zip(*arrays, strict=True)
        return show_all(values, ticket, taps, self)


def named_arrays(found: Arguments) -> Iterator[tuple[Role, str, Any]]:
    """Yield role, name and value of each array that a step is called with."""
    for name, array, is_buffer in found.parameters:
        if is_buffer:
            yield Role.BUFFER, buffer_name(name), array
        else:
            yield parameter_role(name), name, array
    for state, name, array in found.states:
        yield Role.OPTIMIZER_STATE, optimizer_state_name(state, name), array
