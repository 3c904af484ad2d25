"""Outputs of modules, and of the activation functions that they call.

A module is captured as in other frameworks: its output is ``<path>_output_0``, that of
a second call in a step ``<path>_output_0@2``; that of a function such as
``jax.nn.relu`` is ``<path>_relu_output_0``, after the module that returned last.
Everything here holds for the length of a trace.

Thread safety: functions of ``jax.nn`` are replaced in the modules that have them; what
replaces them shows something to the trace of the thread that calls it only.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax

from tdbg.capture.adapter import UnitSummarySpec
from tdbg.capture.naming import activation_name
from tdbg.config.collections import Role
from tdbg.config.kinds import Kind
from tdbg.hooks.jax.kinds import FUNCTIONS, kind_of, kind_of_name
from tdbg.hooks.jax.tracing import CaptureTrace, is_array, present_trace

__all__ = ["functions_shown", "same", "show_call"]

# Where users find the functions of jax.nn.
_HOMES = ("jax.nn", "flax.linen", "flax.nnx", "jax.numpy")
_lock = threading.Lock()
_n_traces = 0
_originals: list[tuple[Any, str, Any]] = []
# Elements beyond are saturated: docs/rules/SaturatedActivation.md.
_RANGES = {
    Kind.TANH: UnitSummarySpec(-0.99, 0.99),
    Kind.SIGMOID: UnitSummarySpec(0.01, 0.99),
    Kind.HARD_TANH: UnitSummarySpec(-0.99, 0.99),
    Kind.HARD_SIGMOID: UnitSummarySpec(0.01, 0.99),
}


def same(outputs: Any) -> Any:
    """Return the outputs of a step as they are."""
    return outputs


def show_call(
    trace: CaptureTrace,
    path: str,
    base: type,
    module: Any,
    inputs: Any,
    call: Callable[..., Any],
) -> Any:
    """Call a module; return what it returns, which is shown, as its inputs are.

    Args:
        trace: Where it is shown.
        path: Of the module; empty: it is the model itself, named by its class.
        base: Class of the module.
        module: The module.
        inputs: Its positional arguments.
        call: Calls it with such arguments.
    """
    name = path or base.__name__
    function = getattr(module, "fn", None) if base.__name__ == "Lambda" else None
    called = getattr(function, "__name__", "") or base.__name__
    kind = kind_of(module) if function is None else kind_of_name(called)
    bases = [each.__name__ for each in base.__mro__[1:-1]]
    classes = trace.facts.add_module(name, called, kind, bases)
    inputs = _shown(trace, name, "input", inputs, Role.INPUT, classes, None)
    outputs = call(*inputs)
    outputs = _shown(trace, name, "output", outputs, Role.OUTPUT, classes, kind)
    trace.latest_module = name
    return outputs


def _shown(
    trace: CaptureTrace,
    path: str,
    direction: str,
    tree: Any,
    role: Role,
    classes: frozenset[str],
    kind: Kind | None,
) -> Any:
    if not any(map(is_array, jax.tree_util.tree_leaves(tree))):
        return tree
    return trace.show_tree(
        tree,
        lambda index, _: activation_name(path, direction, index, 0),
        role,
        classes=classes,
        units=_units(kind) if role is Role.OUTPUT else None,
    )


def _units(kind: Kind | None) -> UnitSummarySpec:
    return UnitSummarySpec() if kind is None else _RANGES.get(kind, UnitSummarySpec())


# ---- functions -----------------------------------------------------------------------


@contextlib.contextmanager
def functions_shown() -> Iterator[None]:
    """Inside, the activation functions that a step calls are shown to its trace."""
    global _n_traces  # noqa: PLW0603 - the functions belong to the process.
    with _lock:
        _n_traces += 1
        if _n_traces == 1:
            _replace_functions(FUNCTIONS)
    try:
        yield
    finally:
        with _lock:
            _n_traces -= 1
            if _n_traces == 0:
                _restore_functions()


def _replace_functions(names: Collection[str]) -> None:
    for home in _HOMES:
        module = sys.modules.get(home)
        if module is None:
            continue
        for name in names:
            function = vars(module).get(name)
            if callable(function):
                _originals.append((module, name, function))
                setattr(module, name, _showing(function, name))


def _restore_functions() -> None:
    while _originals:
        module, name, function = _originals.pop()
        setattr(module, name, function)


def _showing(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def show(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        trace = present_trace()
        if trace is None:
            return result
        kind = kind_of_name(name)
        path = f"{trace.latest_module}_{name}" if trace.latest_module else name
        classes = trace.facts.add_module(path, name, kind)
        return _shown(trace, path, "output", result, Role.OUTPUT, classes, kind)

    return show
