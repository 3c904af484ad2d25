"""Calls out of compiled graphs.

``torch.compile`` turns the code of a module, hooks included, into a graph.  What a
hook of tdbg does is not for a graph; so while it is traced it leaves an operator in
its place, ``tdbg::call`` or ``tdbg::calls``.  When the graph runs, the operator calls
the hook with the tensors as they are at that place.

Why the graph keeps the operator where it is: it writes into a buffer, ``clock``,
that all of them share.  So none is dead code, each comes after the one before it,
none is moved into the backward, and what is done in place to a tensor is done after
it was read.  It has no gradient and no result.  The hook to call is given by a
tensor too, ``target``: a number would be part of the graph, and a block that a model
has many times would be compiled once for each.

Thread safety: any thread may trace and any may run a graph.

Errors: an operator raises what the hook raises: ``TrainingStopped``, nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import compiler
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.optim import Optimizer

from tdbg.capture.naming import MAX_TENSORS
from tdbg.capture.session import Session

__all__ = [
    "GraphTarget",
    "StepBegins",
    "StepEnds",
    "hooks_may_go",
    "never_compiled",
    "new_target",
    "now",
    "report_call",
    "was_traced",
]


_Tensor = torch.Tensor
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MAX_DEPTH = 8


class GraphTarget(Protocol):
    """A hook that a compiled graph calls; it can be referred to weakly."""

    def called(self, given: Any, answered: Any) -> None:
        """Its place in the graph was reached; must not raise but TrainingStopped.

        Args:
            given: The tensors that it was traced with: one, a tuple of them, or None.
            answered: The same of results.
        """


# ---- the operators -------------------------------------------------------------

_DEFINITIONS = (
    "call(Tensor(a!) clock, Tensor target, Tensor? given, Tensor? answered) -> ()",
    "calls(Tensor(a!) clock, Tensor target, Tensor?[] given, Tensor?[] answered) -> ()",
)
# A graph that has the operator in it cannot be recorded there by CUDA.
_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)

_library: Any = torch.library.Library("tdbg", "DEF")  # type: ignore[no-untyped-call]
for _definition in _DEFINITIONS:
    _library.define(_definition, tags=() if _UNSAFE is None else (_UNSAFE,))

_clock = torch.zeros(1)
_numbers = itertools.count()
_targets: dict[int, weakref.ref[Any]] = {}
# Stands for a tensor that was not handed to the operator: refused, and counted.
_UNREADABLE = torch.empty(0, device="meta")
_state = {"traced": -1}


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
    """The hook that is called; None: it is gone, or the compiler tries its graph."""
    if compiler._is_compiling_flag:
        return None
    reference = _targets.get(target.item())  # type: ignore[arg-type]
    return None if reference is None else reference()


def _readable(tensors: Sequence[_Tensor | None]) -> tuple[_Tensor, ...]:
    return tuple(_UNREADABLE if each is None else each for each in tensors)


def _trace(*_: Any) -> None:
    """The compiler asks what the operator returns."""
    _state["traced"] = next(_numbers)


def _batched_call(
    clock: _Tensor, target: _Tensor, given: _Tensor | None, answered: _Tensor | None
) -> None:
    """Under ``vmap`` there are no tensors to read, as without the compiler."""
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
    """What a graph holds in the place of the hook, which it does not keep alive."""
    number = next(_numbers)

    def gone(_: object, targets: dict[int, weakref.ref[Any]] = _targets) -> None:
        targets.pop(number, None)

    _targets[number] = weakref.ref(hook, gone)
    return torch.tensor([number])


def now() -> int:
    """The present, for ``was_traced``."""
    return next(_numbers)


def was_traced(since: int) -> bool:
    """Whether any hook has become part of a graph since then."""
    return _state["traced"] > since


def report_call(target: _Tensor, given: Any, answered: Any) -> None:
    """Leave a call of the hook in the graph that is being traced.

    A model that is exported is for other processes: its graph has no such call.

    Args:
        target: The hook's.
        given: The structure whose tensors the hook is called with.
        answered: The structure of results, likewise.
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
    """The tensors in a structure, as ``naming.tensors_in`` finds them.

    None stands for one whose class dispatches its operations itself.  Only what the
    compiler can trace without leaving the graph.
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


# ---- for what runs beside a graph ------------------------------------------------


def never_compiled(*functions: Callable[..., Any]) -> None:
    """Functions of tdbg that run as they are where the compiler comes across them.

    The compiler runs the hooks of the module that it was given outside the graph, and
    would compile each by itself.  Where it traces a function as part of another one
    this changes nothing.
    """
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    strategy = getattr(frames, "_FrameExecStrategy", None)
    if strategy is None:
        return  # Another PyTorch.  It compiles them, which is slow but not wrong.
    skip = frames._FrameAction.SKIP
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            frames.set_code_exec_strategy(code, strategy(skip, skip))


never_compiled(Session.run)


_Tell = Callable[..., Any]


class StepBegins:
    """The hook before the step of one optimizer.

    Args:
        optimizer: Not kept alive.
        key: Of the optimizer.
        session: What runs *tell_begin*.
        tell_begin: Called with key, optimizer and the arguments of the step.

    Attributes:
        session: As it was given.
    """

    def __init__(
        self, optimizer: Optimizer, key: int, session: Session, tell_begin: _Tell
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._key = key
        self.session = session
        self._report = tell_begin
        self.target = new_target(self)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """It is about to step, or this is traced."""
        if not (is_dynamo_compiling() or compiler._is_compiling_flag):
            return self.session.run(self._report, self._key, optimizer, args, kwargs)
        held = [each for group in optimizer.param_groups for each in group["params"]]
        gradients = [each.grad for each in held if each.grad is not None]
        report_call(self.target, held, gradients)
        return None

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """A compiled step is about to update."""
        optimizer = self._optimizer()
        if optimizer is not None:
            self.session.run(self._report, self._key, optimizer, (), {})


class StepEnds:
    """The hook after it.

    Args:
        optimizer: Not kept alive.
        key: Of the optimizer.
        session: What runs *tell_end*; a compiled step ends before its next event.
        tell_end: Called with key and optimizer.

    Attributes:
        session: As it was given.
    """

    def __init__(
        self, optimizer: Optimizer, key: int, session: Session, tell_end: _Tell
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._key = key
        self.session = session
        self._report = tell_end
        self.target = new_target(self)

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        """It has stepped, or this is traced."""
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, None, None)
        else:
            self.session.run(self._report, self._key, optimizer)

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """A compiled step is over, but for what the end of the graph writes."""
        self.session.unfinished.append(self._end)

    def _end(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            self.session.run(self._report, self._key, optimizer)


never_compiled(StepBegins.__call__, StepEnds.__call__)


class _RemovableHooks(Protocol):
    born: int

    def set_idle(self, is_idle: bool) -> None: ...


_MARK = "_tdbg_puts_back"
# Those whose hooks are taken off.
_away: weakref.WeakSet[Any] = weakref.WeakSet()


def hooks_may_go(removable: _RemovableHooks) -> bool:
    """Whether hooks may be taken off now; they are put back before anything is traced.

    Args:
        removable: The hooks: ``set_idle(False)`` puts them back, ``born`` is when they
            were made.
    """
    if was_traced(removable.born):
        return False
    _away.add(removable)
    # A training that has not loaded the compiler does not use it: optimizers load it.
    callback: Any = sys.modules.get("torch._dynamo.callback")
    handler = getattr(callback, "callback_handler", None)
    callbacks = getattr(handler, "start_callbacks", None)
    if callbacks is not None and _put_back not in callbacks:
        callbacks.append(_put_back)
        _watch_reset(handler)
    return True


def _watch_reset(handler: Any) -> None:
    """``torch.compiler.reset()`` forgets all callbacks: hooks go back before it does.

    They may go again afterwards, and are then put back by a new callback.
    """
    clear = getattr(handler, "clear", None)
    if clear is None or hasattr(clear, _MARK):
        return

    @functools.wraps(clear)
    def put_back_and_clear(*args: Any, **kwargs: Any) -> Any:
        _put_back()
        return clear(*args, **kwargs)

    setattr(put_back_and_clear, _MARK, True)
    handler.clear = put_back_and_clear


def _put_back(*_: Any) -> None:
    """Put all hooks back: the compiler is about to trace, or forgets its callbacks.

    PyTorch 2.7 calls it without an argument, later ones say what they compile.
    """
    for removable in list(_away):
        removable.set_idle(False)
    _away.clear()
