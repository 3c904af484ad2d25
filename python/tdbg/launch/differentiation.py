"""Differentiation and updates in a program with JAX, seen while it is traced.

``jax.grad``, similar functions and the optimizers of optax report their arguments to
the ``Watch`` of the trace that they are called in.  In the trace of a step with taps
they show the tensors.

Thread safety: all notes belong to the thread that traces.

Errors: only those of the program's own functions.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

__all__ = ["Differentiation", "Watch", "Watching", "is_outside", "present_watch"]

# What differentiates, and the same with the value, by module.
_PAIRS = {
    "jax": ("grad", "value_and_grad"),
    "flax.nnx": ("grad", "value_and_grad"),
    "equinox": ("filter_grad", "filter_value_and_grad"),
}
_OPTAX = "optax"


class Watch:
    """The findings in a trace.

    Attributes:
        has_gradients: Whether anything was differentiated, or updated by optax.
        n_updates: How often optimizers of optax were called.
        names: The names of the gradients.
        forms: The forms of what was differentiated (``hooks.jax.returned``).
    """

    def __init__(self) -> None:
        self.has_gradients = False
        self.n_updates = 0
        self.names: set[str] = set()
        self.forms: list[Any] = []

    def add(self, inside: Watch) -> None:
        """Add the findings in a part of the trace."""
        self.has_gradients |= inside.has_gradients
        self.n_updates += inside.n_updates
        self.names |= inside.names
        self.forms += inside.forms


class _Shows(NamedTuple):
    """Tensors shown where the program differentiates; the others where it updates."""

    gradients: bool
    loss: bool


class _Local(threading.local):
    watch: Watch | None = None
    shows: _Shows | None = None
    is_differentiating = False
    is_updating = False


_local = _Local()


class Watching:
    """A context within which a watch sees what this thread traces; yields the watch."""

    def __init__(self) -> None:
        self._outer: Watch | None = None

    def __enter__(self) -> Watch:
        self._outer, _local.watch = _local.watch, Watch()
        return _local.watch

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _local.watch = self._outer


def present_watch() -> Watch | None:
    """Return the watch of this thread."""
    return _local.watch


def is_outside() -> bool:
    """Return whether this thread traces nothing."""
    from jax.extend.core import get_opaque_trace_state

    return bool(get_opaque_trace_state(convention="flax") == _outside())


@functools.cache
def _outside() -> Any:
    """Return the state of a thread that traces nothing."""
    from jax.extend.core import get_opaque_trace_state

    states: list[Any] = []
    thread = threading.Thread(
        target=lambda: states.append(get_opaque_trace_state(convention="flax"))
    )
    thread.start()
    thread.join()
    return states[0]


class Differentiation:
    """The replacements of functions that differentiate and update.

    Attributes:
        n_alone: How often something was differentiated outside of any trace.
    """

    def __init__(self) -> None:
        self.n_alone = 0

    def replacements(
        self, name: str, module: Any
    ) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yield each function to replace in a library: owner, name, replacement."""
        if name == _OPTAX:
            owner = module.GradientTransformation
            yield owner, "__new__", _making(owner.__new__)
            return
        entry, valued = _PAIRS[name]
        alone, both = getattr(module, entry), getattr(module, valued)
        has_forms = name == "jax"
        yield module, entry, self._seen(alone, both, False, has_forms)
        yield module, valued, self._seen(both, both, True, has_forms)

    @staticmethod
    def showing(
        function: Callable[..., Any], *, at_update: bool, loss: bool
    ) -> Callable[..., Any]:
        """Return a function that shows what it differentiates to the present trace.

        Args:
            function: The function.
            at_update: Whether gradients are shown where optax is given them, and not
                where they are computed; a loss is shown with gradients only.
            loss: Whether what is differentiated is shown as the loss.
        """
        shows = _Shows(gradients=loss or not at_update, loss=loss)

        @functools.wraps(function)
        def shown(*args: Any, **kwargs: Any) -> Any:
            before, _local.shows = _local.shows, shows
            try:
                return function(*args, **kwargs)
            finally:
                _local.shows = before

        return shown

    def _seen(
        self,
        transform: Callable[..., Any],
        valued: Callable[..., Any],
        has_value: bool,
        has_forms: bool,
    ) -> Callable[..., Any]:
        """Return the function that replaces ``jax.grad``.

        Args:
            transform: The original.
            valued: The same that returns the value, too.
            has_value: Whether the original does.
            has_forms: Whether it differentiates arguments as they are.
        """
        signature = inspect.signature(transform)

        @functools.wraps(transform)
        def differentiating(*args: Any, **kwargs: Any) -> Any:
            if not args:  # The decorator of a function that comes later.
                named = kwargs.get("fun", kwargs.get("f"))
                if not callable(named):
                    return functools.partial(differentiating, **kwargs)
            given = signature.bind_partial(*args, **kwargs).arguments
            options = {**given, **given.get("gradkwargs", {})}
            compute = transform(*args, **kwargs)
            if not callable(compute):
                return compute

            @functools.wraps(compute, updated=())
            def call(*inputs: Any, **named: Any) -> Any:
                shows = _local.shows
                if _local.is_differentiating or (
                    shows is None and _local.watch is None
                ):
                    self._note_alone()
                    return compute(*inputs, **named)
                takes = shows is not None and shows.loss and not has_value
                function = valued(*args, **kwargs) if takes else compute
                _local.is_differentiating = True
                try:
                    outputs = function(*inputs, **named)
                finally:
                    _local.is_differentiating = False
                what = None
                argnums = options.get("argnums", 0)
                if has_forms and _is_in(argnums, inputs):
                    what = inputs[argnums]
                aux = bool(options.get("has_aux"))
                return _handled(outputs, what, has_value or takes, aux, has_value)

            return call

        return differentiating

    def _note_alone(self) -> None:
        if not _local.is_differentiating and is_outside():
            self.n_alone += 1


def _is_in(argnums: Any, inputs: tuple[Any, ...]) -> bool:
    return isinstance(argnums, int) and -len(inputs) <= argnums < len(inputs)


def _handled(
    outputs: Any, what: Any, has_value: bool, has_aux: bool, returns_value: bool
) -> Any:
    """Note and show the results; return what the program expects.

    Args:
        outputs: ``(value, gradients)``, or the gradients, or these and more.
        what: What was differentiated; None: nobody knows.
        has_value: Whether the outputs have the value.
        has_aux: Whether the function returns more than the value.
        returns_value: Whether the program expects the value.
    """
    from tdbg.hooks.jax.gradients import show_gradients

    value: Any = None
    aux: Any = None
    if has_value:
        value, gradients = outputs
        if has_aux:
            value, aux = value
    elif has_aux:
        gradients, aux = outputs
    else:
        gradients = outputs
    with contextlib.suppress(Exception):  # The program's own trace goes on.
        _note(gradients, what)
    shows = _local.shows
    if shows is not None and shows.gradients:
        gradients = show_gradients(gradients, value if shows.loss else None)
    if returns_value:
        return ((value, aux) if has_aux else value), gradients
    return (gradients, aux) if has_aux else gradients


def _note(gradients: Any, what: Any) -> None:
    watch = _local.watch
    if watch is None:
        return
    import jax

    from tdbg.hooks.jax.names import path_name
    from tdbg.hooks.jax.returned import form_of

    watch.has_gradients = True
    paths = jax.tree_util.tree_flatten_with_path(gradients)[0]
    watch.names |= {path_name(path) for path, _ in paths}
    if what is not None:
        watch.forms.append(form_of(what))


def _making(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a maker of optax transformations whose updates are seen."""

    def new(cls: type, init: Any, update: Any) -> Any:
        return make(cls, init, _updating(update))

    return new


def _updating(update: Callable[..., Any]) -> Callable[..., Any]:
    is_of_frozen = getattr(update, "__qualname__", "").startswith("set_to_zero.")

    @functools.wraps(update)
    def seen(updates: Any, *args: Any, **kwargs: Any) -> Any:
        watch = _local.watch
        shows = _local.shows
        if _local.is_updating or (shows is None and watch is None):
            if shows is not None and is_of_frozen:
                from tdbg.hooks.jax.gradients import note_frozen

                note_frozen(updates)
            return update(updates, *args, **kwargs)
        _local.is_updating = True
        try:
            if watch is not None:
                watch.n_updates += 1
                with contextlib.suppress(Exception):
                    _note(updates, None)
            if shows is None:
                return update(updates, *args, **kwargs)
            from tdbg.hooks.jax.gradients import show_update

            at_update = not shows.gradients
            return show_update(
                update, updates, *args, shows_gradients=at_update, **kwargs
            )
        finally:
            _local.is_updating = False

    return seen
