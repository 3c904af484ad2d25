"""Divert calls of PyTorch's own functions, so that tdbg can follow them.

A function of ``torch.nn.functional`` stays the same object and gets other code.  So it
is followed wherever the program imported it, a model that holds one is pickled as
before, and the compilers of PyTorch, which know functions by identity, compile what
they compiled before.  A builtin (``torch.tanh``, ``torch.nn.functional.gelu``) has no
code to exchange.  Another function takes its place while a captured forward is under
way, until something is compiled.

Until something is compiled, an activation has its own code in forwards that are not
captured, and costs what it costs without tdbg.  Losses are always followed, except in
steps that are only counted.

``torch.nn.functional`` warns with a ``stacklevel`` that counts frames up to the caller
of its function.  Between a diverted function and its caller lie frames of tdbg, so the
warning would name a file of tdbg.  While a function is diverted, a stand-in for
``warnings`` in its module skips these frames.

Thread safety: functions are diverted by the training's thread; any thread may call
them.

Errors: a function that cannot be diverted is left as it is.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import compiler
from torch._C import _current_graph_task_id
from torch.compiler import is_dynamo_compiling
from torch.jit import _builtins

from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.functions.timed_calls import time_call, untime_call
from tdbg.hooks.pytorch.model.call_context import NOT_IN_BACKWARD
from tdbg.run.profile_tables import Phase

if TYPE_CHECKING:
    from tdbg._core import CountedCall, StepCounter

__all__ = [
    "DivertedCode",
    "DivertedCodes",
    "FunctionCall",
    "Listener",
    "Place",
    "code_of",
    "place_of",
]

_Function = Callable[..., Any]
_DIVERTED = "_tdbg_diverted"
# The constant that the diverting code replaces by the function that it calls.
_PLACE = "what is called"
# The threads in which such a function is being called.
_calling_now: set[int] = set()


class FunctionCall(NamedTuple):
    """A call of a function, which has returned.

    Attributes:
        name: The function's.
        args: What it was given.
        kwargs: What it was given by name.
        result: What it returned.
        caller: The frame that called it.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    caller: types.FrameType


class Listener:
    """Hears of calls of functions.

    Attributes:
        is_on: Whether it hears of calls now.
        sees_all: Whether iterators among the arguments become tuples, so that the
            listener can read them after the call.
        skips_backward: Whether it hears of no call that a backward pass makes.
    """

    is_on = False
    sees_all = False
    skips_backward = False

    def called(self, call: FunctionCall) -> None:
        """Handle the call of a function, which has returned; it must not raise."""


class Place(NamedTuple):
    """The place of a builtin, and the function that can take it.

    Attributes:
        owner: The module.
        name: The name there.
        original: The builtin.
        diverted: Calls the builtin and reports the call.
    """

    owner: types.ModuleType
    name: str
    original: _Function
    diverted: _Function


class DivertedCode(NamedTuple):
    """A function that is written in Python, with the code that diverts its calls.

    Attributes:
        function: The function.
        codes: Its own code and the code that diverts its calls; ``__code__`` is set to
            either.
        call: Called by the diverting code; its ``counter`` says when nobody need hear.
        lines: Keeps warnings of the function at the lines of its callers.
    """

    function: Any  # Typed, it would be taken for a method.
    codes: tuple[types.CodeType, types.CodeType]
    call: CountedCall
    lines: WarnedLines

    def remove(self) -> None:
        """Leave the function as it was."""
        self.lines.end()
        untime_call(self.call)
        self.function.__code__ = self.codes[False]
        for attribute in ("__signature__", _DIVERTED):
            vars(self.function).pop(attribute, None)


class DivertedCodes:
    """Functions whose code is exchanged together.

    Attributes:
        are_diverted: Whether they have the code that diverts their calls.
    """

    def __init__(self) -> None:
        self._codes: list[DivertedCode] = []
        self._counter: StepCounter | None = None
        self.are_diverted = True

    @property
    def counter(self) -> StepCounter | None:
        """The counter of steps in which no call is followed; None: all steps are."""
        return self._counter

    @counter.setter
    def counter(self, counter: StepCounter | None) -> None:
        self._counter = counter
        for each in self._codes:
            each.call.counter = counter

    def add(self, code: DivertedCode) -> None:
        """Add one."""
        self._codes.append(code)
        code.call.counter = self._counter
        code.lines.begin()
        code.function.__code__ = code.codes[self.are_diverted]

    def exchange(self, are_diverted: bool) -> None:
        """Give them the code that diverts their calls, or their own."""
        if are_diverted is not self.are_diverted:
            self.are_diverted = are_diverted
            for each in self._codes:
                each.function.__code__ = each.codes[are_diverted]

    def remove(self) -> None:
        """Leave all as they were; others may be added."""
        for each in self._codes:
            each.remove()
        self._codes.clear()
        self.are_diverted = True


def code_of(
    owner: types.ModuleType, name: str, listener: Listener, phase: Phase | None = None
) -> DivertedCode | None:
    """Return the code that can divert calls of a function written in Python.

    Args:
        owner: The module of the function.
        name: The name there.
        listener: Hears of its calls.
        phase: The phase of a training that each call is; None: they are not timed.

    Returns:
        The code; None for any other function, and for one that is diverted already.
    """
    function = getattr(owner, name, None)
    if not isinstance(function, types.FunctionType) or function.__closure__:
        return None
    if hasattr(function, _DIVERTED):
        return None
    code = function.__code__
    original = types.FunctionType(
        code, function.__globals__, name, function.__defaults__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    followed = _calling(original, name, listener)
    call = import_module("tdbg._core").CountedCall(original, followed, phase or 0)
    if phase is not None:
        time_call(call)

    def template(*args: Any, **kwargs: Any) -> Any:
        call: Any = "what is called"
        return call(*args, **kwargs)

    diverted = template.__code__.replace(
        co_consts=tuple(
            call if each == _PLACE else each for each in template.__code__.co_consts
        ),
        # Those who read the source of the function, as ``torch.jit.script``, find it.
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )

    vars(function).update(
        {"__signature__": inspect.signature(function), _DIVERTED: True}
    )
    lines = WarnedLines(function.__globals__, diverted, followed)
    return DivertedCode(function, (code, diverted), call, lines)


def place_of(owner: types.ModuleType, name: str, listener: Listener) -> Place | None:
    """Return the place of a builtin; None: there is none of that name."""
    original = getattr(owner, name, None)
    if not isinstance(original, types.BuiltinFunctionType):
        return None
    called = _calling(original, name, listener)

    @functools.wraps(original)
    def diverted(*args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    return Place(owner, name, original, diverted)


def _calling(original: _Function, name: str, listener: Listener) -> _Function:
    """Make the function that diverting code calls in place of *original*.

    A call inside another one is not reported: it is part of that one, or the same call
    passed on by a mode of PyTorch (``torch.set_default_device``).
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        # Losses come here in every step that is seen: keep calls few.
        if not listener.is_on or is_dynamo_compiling() or compiler._is_compiling_flag:
            return original(*args, **kwargs)
        if listener.skips_backward and _current_graph_task_id() != NOT_IN_BACKWARD:
            return original(*args, **kwargs)
        thread = threading.get_ident()
        if thread in _calling_now:
            return original(*args, **kwargs)
        if listener.sees_all:
            args = tuple(map(_kept, args))
            kwargs = {key: _kept(value) for key, value in kwargs.items()}
        _calling_now.add(thread)
        try:
            result = original(*args, **kwargs)
        finally:
            _calling_now.discard(thread)
        # Behind this frame is that of the function, and then that of its caller.
        listener.called(FunctionCall(name, args, kwargs, result, sys._getframe(2)))
        return result

    # The compiler must not compile it with the code around it.
    never_compiled(call)
    return call


def _kept(given: Any) -> Any:
    """Return a tuple in place of an iterator, to be read twice."""
    return tuple(given) if isinstance(given, Iterator) else given


_NAME = "warnings"


class WarnedLines:
    """The frames of a diverted function, which warnings skip.

    Args:
        namespace: The globals of the function's module.
        diverted: The code of the function while it is diverted.
        followed: The function that this code calls, and which calls the original.
    """

    def __init__(
        self, namespace: dict[str, Any], diverted: types.CodeType, followed: Any
    ) -> None:
        self._namespace, self._diverted = namespace, diverted
        _following.add(followed.__code__)

    def begin(self) -> None:
        """Skip these frames."""
        _diverted[id(self._diverted)] = self._diverted
        _namespaces[id(self._diverted)] = id(self._namespace)
        if self._namespace.get(_NAME) is warnings:
            self._namespace[_NAME] = _stand_in

    def end(self) -> None:
        """Count frames as before, if no other function of the module is diverted."""
        _diverted.pop(id(self._diverted), None)
        _namespaces.pop(id(self._diverted), None)
        is_last = id(self._namespace) not in _namespaces.values()
        if is_last and self._namespace.get(_NAME) is _stand_in:
            self._namespace[_NAME] = warnings


# By identity: equality of codes would compare the functions among their constants.
_diverted: dict[int, types.CodeType] = {}
# The namespaces of their modules, by identity.
_namespaces: dict[int, int] = {}
# The code of the functions that they call.
_following: set[types.CodeType] = set()


def _warn(
    message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any
) -> None:
    """Warn like ``warnings.warn``, without counting frames of diverted functions."""
    frame: types.FrameType | None = sys._getframe(1)
    n_frames = stacklevel + 1  # With this one.
    for _ in range(1, stacklevel):
        frame = None if frame is None else frame.f_back
        while frame is not None and (
            id(frame.f_code) in _diverted or frame.f_code in _following
        ):
            n_frames += 1
            frame = frame.f_back
    warnings.warn(message, category, n_frames, *args, **kwargs)


class _Warnings(types.ModuleType):
    def __init__(self) -> None:
        super().__init__(_NAME, warnings.__doc__)
        self.warn = _warn

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)


_stand_in = _Warnings()
with contextlib.suppress(Exception):
    # ``torch.jit.script`` reads the source of these functions; it must know `_warn`.
    _builtins._register_builtin(_warn, "aten::warn")
