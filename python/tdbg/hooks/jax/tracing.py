"""The trace of a step's capture variant, in which taps show what passes through them.

Thread safety: a trace belongs to the thread that traces; others see none.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tdbg.capture.adapter import UnitSummarySpec
from tdbg.capture.naming import activation_name
from tdbg.config.collections import Role
from tdbg.hooks.jax.facts import ModelFacts
from tdbg.hooks.jax.names import join, path_name
from tdbg.hooks.jax.primitive import show
from tdbg.hooks.jax.sites import Sites

__all__ = ["CaptureTrace", "present_trace", "tap"]

_Tree = TypeVar("_Tree")

# Functions that a step calls may be compiled by jax.jit themselves: JAX would take
# their trace without taps for the one with, if this did not differ. Programs traced
# within one trace share the ticket, those of two do not.
_cache_key = jax.make_user_context(0) if hasattr(jax, "make_user_context") else None
_numbers = itertools.count(1)
_DTYPES = frozenset("biuf")
_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")


class _Present(threading.local):
    trace: CaptureTrace | None = None


_present = _Present()


class CaptureTrace:
    """A trace of the capture variant of a step.

    Args:
        sites: Gives a number to each tap.
        ticket: Of the step that will run, int32[2]: a tracer.
        facts: Gathers what is known of the model.

    Attributes:
        facts: As given.
        latest_module: Path of the module that returned last, for the names of
            functions; empty: none has.
        refused: Names of values that no tap can show.
        made_states: States of optimizers that were made in it.
        used_states: Whether each call of an optimizer was given one of these.
    """

    def __init__(self, sites: Sites, ticket: Any, facts: ModelFacts) -> None:
        self.facts = facts
        self._sites = sites
        self._ticket = ticket
        self.latest_module = ""
        self.refused: list[str] = []
        self.made_states: list[Any] = []
        self.used_states: list[bool] = []

    def use_state(self, state: Any) -> None:
        """Note that an optimizer is given a state."""
        made = {
            id(leaf)
            for each in self.made_states
            for leaf in jax.tree_util.tree_leaves(each)
        }
        given = jax.tree_util.tree_leaves(state)
        self.used_states.append(bool(given) and all(id(each) in made for each in given))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make the taps of this thread belong to this trace, inside the context."""
        outer, _present.trace = _present.trace, self
        key = (
            contextlib.nullcontext()
            if _cache_key is None
            else _cache_key(next(_numbers))
        )
        try:
            with key:
                yield
        finally:
            _present.trace = outer

    @contextlib.contextmanager
    def after(self, x: Any) -> Iterator[None]:
        """Let taps inside the context show nothing before the number *x* is there.

        So a number is computed, and its own tap is part of the program, that nothing
        but the taps needs.
        """
        before = self._ticket
        bits = jax.lax.bitcast_convert_type(jnp.float32(x), jnp.uint32)
        # Zero, which XLA does not know before it runs.
        self._ticket = before + (jnp.minimum(bits | 1, 1) - 1).astype(jnp.int32)
        try:
            yield
        finally:
            self._ticket = before

    def show(
        self,
        x: Any,
        name: str,
        role: Role,
        classes: frozenset[str] = frozenset(),
        units: UnitSummarySpec | None = None,
    ) -> Any:
        """Return *x*, which is shown under this name if any step captures it."""
        if not self._sites.captures(name, role, classes):
            return x
        if not _is_showable(x):
            self.refused.append(name)
            return x
        number = self._sites.add(name, role, classes, units)
        return show(jnp.asarray(x), _with_part(x, self._ticket), number)

    def show_tree(
        self, tree: Any, make: Callable[[int, str], str], role: Role, **facts: Any
    ) -> Any:
        """Return the tree, each array of which is shown.

        Args:
            tree: A pytree, or an array.
            make: Returns the name of an array by its index and its path.
            role: Of all of them.
            facts: As of ``show``.
        """
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        shown, index = [], 0
        for path, leaf in leaves:
            if not is_array(leaf):
                shown.append(leaf)
                continue
            name = make(index, path_name(path))
            shown.append(self.show(leaf, name, role, **facts))
            index += 1
        return jax.tree_util.tree_unflatten(structure, shown)


def present_trace() -> CaptureTrace | None:
    """The trace of a capture variant that this thread is in; None: there is none."""
    return _present.trace


def tap(x: _Tree, name: str, *, role: Role = Role.OUTPUT, kind: str = "") -> _Tree:
    """Capture a tensor inside a step that ``hook.jit`` compiles.

        h = tj.tap(jax.nn.relu(h), "mlp/hidden", kind="relu")

    Use what it returns: a tap whose result nobody uses is no part of the program. It
    may stand in anything that JAX transforms (``grad``, ``vmap``, ``lax.scan``,
    ``jax.checkpoint``, ``shard_map``), and is nothing at all outside a step of
    ``hook.jit``, and in steps that capture nothing.

    Args:
        x: An array, or a pytree of arrays, whose paths follow the name.
        name: The name. Where it is shown again in a step, ``@2``, ``@3`` follow.
        role: What the tensor is to the training: ``Role.OUTPUT``, or of
            ``tdbg.config.collections.Role`` another.
        kind: What has computed it, in the words of ``tdbg.config.kinds``, for the
            rules that ask for kinds. The tensor is then named as the output of a
            module is: ``<name>_output_0``.

    Returns:
        *x*, with the same values.
    """
    trace = _present.trace
    if trace is None:
        return x
    units = UnitSummarySpec() if role is Role.OUTPUT else None
    if kind:
        return trace.show_tree(  # type: ignore[no-any-return]
            x,
            lambda index, _: activation_name(name, "output", index, 0),
            role,
            classes=trace.facts.classes_of(name, kind),
            units=units,
        )
    return trace.show_tree(  # type: ignore[no-any-return]
        x, lambda _, path: join(name, path), role, units=units
    )


def is_array(value: Any) -> bool:
    """Whether a leaf is an array of JAX or NumPy, or a tracer."""
    return isinstance(value, jax.Array | np.ndarray)


def _is_showable(x: Any) -> bool:
    dtype = x.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return False  # Keys of random numbers.
    return dtype.kind in _DTYPES or dtype.name in _EXTENDED


def _with_part(x: Any, ticket: Any) -> Any:
    """Append the number of the part, in a program that is written for each device.

    What is equal along an axis of the mesh is shown by the first device of it. Where
    JAX does not keep track of that (``check_vma=False``), nothing counts as equal.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = getattr(mesh, "manual_axes", ())
    if not axes:
        return ticket
    varying = _varying(x)
    part, shows = jnp.int32(0), jnp.bool_(True)
    for axis in axes:
        index = jax.lax.axis_index(axis)
        is_known = axis in _varying(index)
        if axis in varying or not is_known:
            part = part * mesh.shape[axis] + index
        else:
            shows = shows & (index == 0)
    number = jnp.where(shows, part, jnp.int32(-1)).astype(jnp.int32)
    return jnp.concatenate([ticket, number[None]])


def _varying(x: Any) -> frozenset[str]:
    """Return the axes of the mesh along which a value is known to differ."""
    aval = jax.typeof(x)
    axes = getattr(getattr(aval, "mat", None), "varying", None)
    return frozenset(getattr(aval, "vma", ()) if axes is None else axes)
