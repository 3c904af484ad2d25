"""Checkpoints: their time in the steps, and an event for each.

The functions that save one are wrapped while anybody measures or watches, once their
library is loaded.  A program that imported such a function by its name before is not
seen.

Thread safety: any thread may save.

Errors: none but those of the functions.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler.part import ProfilerPart
from tdbg.run.profile_tables import Phase
from tdbg.run.schema import EventKind

__all__ = ["Checkpoints", "SaveWatcher", "forget_saves", "start", "watch_saves"]

_CHECKPOINT = int(Phase.CHECKPOINT)
#: The functions, by the module that has them.
FUNCTIONS: Final = (
    ("torch", "save"),
    ("torch.distributed.checkpoint", "save"),
    ("torch.distributed.checkpoint", "async_save"),
    ("safetensors.torch", "save_file"),
)
# Where else a function is: pickle looks there if a program sends it to a process.
_HOMES = {"torch": "torch.serialization"}
_ORIGINAL = "_tdbg_saves"
# Nobody is kept alive by these functions.
_open: weakref.WeakSet[Checkpoints] = weakref.WeakSet()
_watchers: weakref.WeakSet[SaveWatcher] = weakref.WeakSet()


class SaveWatcher(Protocol):
    """Somebody who is told what programs save; raises nothing."""

    def saved(self, given: Any) -> None:
        """Note what the program is about to save."""


def watch_saves(watcher: SaveWatcher) -> None:
    """Tell of each save, until ``forget_saves`` or as long as the watcher lives."""
    _watchers.add(watcher)
    _wrap_all()
    weakref.finalize(watcher, _unwrap_unused).atexit = False


def forget_saves(watcher: SaveWatcher) -> None:
    """Tell of saves no longer."""
    _watchers.discard(watcher)
    _unwrap_unused()


def start(session: Session, _: ProfilerConfig) -> ProfilerPart:
    """Measure checkpoints until the part is closed."""
    return Checkpoints(session)


class Checkpoints:
    """Measures the checkpoints of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._new: list[dict[str, Any]] = []
        _open.add(self)
        _wrap_all()
        weakref.finalize(self, _unwrap_unused).atexit = False
        session.listen(rows=self._write)

    def begins(self) -> None:
        """Note that a checkpoint begins."""
        self._session.clock.enter(_CHECKPOINT)

    def ends(self, name: str, start_ns: int) -> None:
        """Note that it is saved, or has failed."""
        self._session.clock.leave(_CHECKPOINT)
        event = {
            "what": "checkpoint",
            "by": name,
            "start_ns": start_ns,
            "duration_ns": time.monotonic_ns() - start_ns,
        }
        self._new.append(event)

    def _write(self) -> None:
        if self in _open:
            _wrap_all()
        new, self._new = self._new, []
        for event in new:
            self._session.write_event(EventKind.CHANGE, event)

    def close(self) -> None:
        """Measure no longer, and write what is left."""
        self.forked()
        self._session.run(self._write)

    def forked(self) -> None:
        """Measure no longer: this is a child."""
        _open.discard(self)
        _unwrap_unused()


def _owners(module: str) -> list[Any]:
    """Return the modules that have a function, if they are loaded."""
    found = map(sys.modules.get, (module, _HOMES.get(module, module)))
    return [each for each in found if each is not None]


def _wrap_all() -> None:
    for module, name in FUNCTIONS:
        function = getattr(sys.modules.get(module), name, None)
        if callable(function) and not hasattr(function, _ORIGINAL):
            wrapped = _wrapped(function, f"{module}.{name}")
            for owner in _owners(module):
                if getattr(owner, name, None) is function:
                    setattr(owner, name, wrapped)


def _unwrap_unused() -> None:
    if _open or _watchers:
        return
    for module, name in FUNCTIONS:
        for owner in _owners(module):
            original = getattr(getattr(owner, name, None), _ORIGINAL, None)
            if original is not None:
                setattr(owner, name, original)


def _wrapped(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def save(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else next(iter(kwargs.values()), None)
        for watcher in list(_watchers):
            watcher.saved(given)
        sessions, start_ns = list(_open), time.monotonic_ns()
        for each in sessions:
            each.begins()
        try:
            return function(*args, **kwargs)
        finally:
            for each in sessions:
                each.ends(name, start_ns)

    setattr(save, _ORIGINAL, function)
    return save
