"""Callables that tdbg registers on a model, and the model's copies without them.

While any hook is open, a module is pickled and copied as if tdbg had registered
nothing: ``torch.load(weights_only=True)`` needs no more than the classes of the model.
``torch.jit.script`` would compile hooks, and cannot compile these: they are taken off
while it reads a module.

Thread safety: hooks are opened and closed by the training's thread.

Errors: none.  If a module reduces itself, or its state is no dictionary, its copies
have callbacks that do nothing (``Inert``).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from tdbg.capture.session import Session

__all__ = ["Callback", "Inert", "leave_out_of_copies"]


class Inert:
    """Something on a model that copies of the model do not have.

    tdbg must not capture a copied or pickled model, and the model must load without
    tdbg.  A callable of the standard library that does nothing stands in the copy.
    """

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Callback(Inert):
    """A hook of a module that is not in copies of the module.

    Attributes:
        puts_back: Whether this hook puts other hooks back on the model.  The hooks
            beside it must then stay: PyTorch has begun to call them all.
    """

    __slots__ = ("__weakref__", "session")
    puts_back = False

    def __init__(self, session: Session) -> None:
        self.session = session


_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# Dicts with notes of PyTorch on these hooks, by the same keys.
_NOTES = (
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
# The functions that were replaced, by owner and name; None: there was none.
_originals: dict[tuple[Any, str], Any] = {}


def leave_out_of_copies(session: Session) -> None:
    """Leave callbacks of tdbg out of copies while this session is open."""
    _sessions.add(session)
    closed = functools.partial(_closed, weakref.ref(session))
    session.listen(close=closed, rest=closed)
    _replace(nn.Module, "__getstate__", _state)
    # For classes with their own __getstate__: LSTM, DistributedDataParallel.
    _replace(nn.Module, "__reduce_ex__", _reduced)
    scripting = sys.modules.get("torch.jit._recursive")
    if hasattr(scripting, "create_script_module"):
        _replace(scripting, "create_script_module", _create_script_module)


def _closed(session: weakref.ref[Session]) -> None:
    known = session()
    if known is not None:
        _sessions.discard(known)
    if _sessions:
        return
    for (owner, name), original in _originals.items():
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _originals.clear()


def _replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    if (owner, name) in _originals:
        return
    original = _originals[(owner, name)] = vars(owner).get(name)

    # A function, which becomes a method if it stands in a class.
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, functools.wraps(original or replacement)(replaced))


def _create_script_module(
    original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any
) -> Any:
    with _without_callbacks(module):
        return original(module, *args, **kwargs)


def _state(original: Callable[[nn.Module], Any] | None, module: nn.Module) -> Any:
    """Return the state of a module for its copy, without callbacks."""
    of_next: Any = super(nn.Module, module)
    return _cleaned(of_next.__getstate__() if original is None else original(module))


def _reduced(
    original: Callable[[nn.Module, Any], Any] | None, module: nn.Module, protocol: Any
) -> Any:
    """Return the parts that a module is rebuilt from, without callbacks."""
    of_next = super(nn.Module, module)
    reduced = (
        of_next.__reduce_ex__(protocol)
        if original is None
        else original(module, protocol)
    )
    if not isinstance(reduced, tuple) or len(reduced) < 3:
        return reduced
    make, arguments, state, *others = reduced
    return (make, arguments, _cleaned(state), *others)


def _cleaned(state: Any) -> Any:
    """Return the state of a module without callbacks; unchanged if it has none."""
    own: Any = state[0] if isinstance(state, tuple) and state else state
    if not isinstance(own, dict):
        return state
    keys = _keys_of_callbacks(own)
    if isinstance(own.get("forward"), Inert):
        own = {name: value for name, value in own.items() if name != "forward"}
    elif not keys:
        return state
    for name in (*_HOOKS, *_NOTES):
        if not keys.isdisjoint(own.get(name) or ()):
            kept = [item for item in own[name].items() if item[0] not in keys]
            own = {**own, name: type(own[name])(kept)}
    return (own, *state[1:]) if isinstance(state, tuple) else own


def _keys_of_callbacks(state: dict[str, Any]) -> set[int]:
    return {
        key
        for name in _HOOKS
        for key, callback in (state.get(name) or {}).items()
        if isinstance(callback, Inert)
    }


@contextlib.contextmanager
def _without_callbacks(root: Any) -> Iterator[None]:
    """Take the callbacks off all modules in the meantime."""
    before: list[tuple[Any, dict[Any, Any]]] = []
    forwards: list[tuple[dict[str, Any], Any]] = []
    for module in root.modules() if isinstance(root, nn.Module) else ():
        keys = _keys_of_callbacks(vars(module))
        if isinstance(vars(module).get("forward"), Inert):
            forwards.append((vars(module), vars(module).pop("forward")))
        for name in (*_HOOKS, *_NOTES):
            hooks = vars(module).get(name)
            if hooks and not keys.isdisjoint(hooks):
                before.append((hooks, dict(hooks)))
                for key in keys:
                    hooks.pop(key, None)
    try:
        yield
    finally:
        for hooks, items in before:
            hooks.clear()
            hooks.update(items)
        for attributes, forward in forwards:
            attributes["forward"] = forward
