"""Calls out of compiled graphs.

``torch.compile`` turns the code of a module into a graph, hooks included.  The work of
a hook of tdbg cannot be part of a graph.  When the compiler traces a hook, the hook
leaves an operator in its place, ``tdbg::call`` or ``tdbg::calls``.  When the graph
runs, the operator calls the hook with the tensors as they are at that place.

The graph keeps the operator in its place because all operators write into one shared
buffer, ``clock``.  So none is dead code, their order stays, none moves into the
backward, and in-place changes of a tensor come after its reading.  The operator has no
gradient and no result.  A tensor, ``target``, says which hook to call: a number would
be part of the graph, and the compiler would compile a repeated block of a model once
for each repetition.

Thread safety: any thread may trace, and any may run a graph.

Errors: an operator raises ``TrainingStopped`` if the hook does, and nothing else.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import compiler
from torch.compiler import is_exporting

from tdbg.capture.naming import MAX_TENSORS
from tdbg.hooks.pytorch.compile.tracing import note_trace

__all__ = [
    "GraphTarget",
    "new_target",
    "report_call",
]


_Tensor = torch.Tensor
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MAX_DEPTH = 8


class GraphTarget(Protocol):
    """A hook that a compiled graph calls; it can be referred to weakly."""

    def called(self, given: Any, answered: Any) -> None:
        """Handle a run of the graph that reaches the hook's place.

        It must not raise anything but TrainingStopped.

        Args:
            given: The tensors of ``report_call``: one, a tuple of them, or None.
            answered: The results, likewise.
        """


# ---- the operators -------------------------------------------------------------

_DEFINITIONS = (
    "call(Tensor(a!) clock, Tensor target, Tensor? given, Tensor? answered) -> ()",
    "calls(Tensor(a!) clock, Tensor target, Tensor?[] given, Tensor?[] answered) -> ()",
)
# CUDA cannot record the operator in a CUDA graph.
_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)

_library: Any = torch.library.Library("tdbg", "DEF")  # type: ignore[no-untyped-call]
for _definition in _DEFINITIONS:
    _library.define(_definition, tags=() if _UNSAFE is None else (_UNSAFE,))

_clock = torch.zeros(1)
_numbers = itertools.count()
_targets: dict[int, weakref.ref[Any]] = {}
# Stands for a tensor that the operator did not get; it is refused and counted.
_UNREADABLE = torch.empty(0, device="meta")


def _run_call(
    _: _Tensor, target: _Tensor, given: _Tensor | None, answered: _Tensor | None
) -> None:
    hook = _hook_of(target)
    if hook is not None:
        hook.called(given, answered)


def _run_calls(
    _: _Tensor,
    target: _Tensor,
    given: Sequence[_Tensor | None],
    answered: Sequence[_Tensor | None],
) -> None:
    hook = _hook_of(target)
    if hook is not None:
        hook.called(_readable(given), _readable(answered))


def _hook_of(target: _Tensor) -> Any:
    """Return the hook to call; None if it is gone or the compiler tries its graph."""
    if compiler._is_compiling_flag:
        return None
    reference = _targets.get(target.item())  # type: ignore[arg-type]
    return None if reference is None else reference()


def _readable(tensors: Sequence[_Tensor | None]) -> tuple[_Tensor, ...]:
    return tuple(_UNREADABLE if each is None else each for each in tensors)


def _trace(*_: Any) -> None:
    """Answer the compiler, which asks for the operator's result: none."""
    note_trace()


def _batched_call(
    clock: _Tensor, target: _Tensor, given: _Tensor | None, answered: _Tensor | None
) -> None:
    """Call without tensors: under ``vmap`` none can be read, compiled or not."""
    n_given, n_answered = int(given is not None), int(answered is not None)
    _calls(clock, target, [None] * n_given, [None] * n_answered)


def _batched_calls(
    clock: _Tensor, target: _Tensor, given: Sequence[Any], answered: Sequence[Any]
) -> None:
    _calls(clock, target, [None] * len(given), [None] * len(answered))


for _name, _implementation, _under_vmap in (
    ("call", _run_call, _batched_call),
    ("calls", _run_calls, _batched_calls),
):
    _library.impl(_name, _implementation, "CompositeExplicitAutograd")
    _library.impl(_name, _under_vmap, "FuncTorchBatched")
    torch.library.register_fake(f"tdbg::{_name}", _trace, lib=_library)

_call: Any = torch.ops.tdbg.call.default
_calls: Any = torch.ops.tdbg.calls.default


# ---- for hooks -----------------------------------------------------------------


def new_target(hook: GraphTarget) -> _Tensor:
    """Return the tensor that stands for a hook in graphs; it keeps no hook alive."""
    number = next(_numbers)

    def gone(_: object, targets: dict[int, weakref.ref[Any]] = _targets) -> None:
        targets.pop(number, None)

    _targets[number] = weakref.ref(hook, gone)
    return torch.tensor([number])


def report_call(target: _Tensor, given: Any, answered: Any) -> None:
    """Leave a call of the hook in the graph that is being traced.

    An exported model runs in other processes, so its graph gets no call.

    Args:
        target: The hook's tensor, of ``new_target``.
        given: A structure of tensors; the hook is called with them.
        answered: A structure of results, likewise.
    """
    if is_exporting():
        return
    if type(given) is tuple and len(given) == 1:
        given = given[0]
    is_single = (given is None or type(given) in _PLAIN) and (
        answered is None or type(answered) in _PLAIN
    )
    if is_single:
        _call(_clock, target, given, answered)
    else:
        found, results = _flat(given, 0), _flat(answered, 0)
        _calls(_clock, target, found[:MAX_TENSORS], results[:MAX_TENSORS])


def _flat(value: Any, depth: int) -> list[_Tensor | None]:
    """Return the tensors in a structure, as ``naming.tensors_in`` finds them.

    None stands for a tensor whose class dispatches its operations itself.  The code is
    such that the compiler can trace it without leaving the graph.
    """
    if isinstance(value, torch.Tensor):
        return [value if type(value) in _PLAIN else None]
    found: list[_Tensor | None] = []
    if depth >= _MAX_DEPTH:
        return found
    if isinstance(value, tuple | list):
        for each in value:
            found += _flat(each, depth + 1)
    elif isinstance(value, dict):
        for each in value.values():
            found += _flat(each, depth + 1)
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        for item in dataclasses.fields(value):
            found += _flat(getattr(value, item.name, None), depth + 1)
    return found
