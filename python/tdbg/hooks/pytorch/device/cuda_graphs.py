"""Recordings and replays of CUDA graphs, reported while a hook watches.

Every recording and replay goes through three methods of ``torch.cuda.CUDAGraph``,
which are wrapped.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from tdbg.capture.replay import GraphRecording, Recordings
from tdbg.capture.session import Session
from tdbg.modes import ModeKeys

__all__ = ["GraphCapture"]


class _Watcher(Protocol):
    """Is called back, and must not raise."""

    def graph_begins(self, graph: Any) -> None: ...

    def graph_ends(self, graph: Any) -> None: ...

    def graph_replayed(self, graph: Any) -> None: ...


class GraphCapture:
    """Reports graphs that are recorded and replayed to a session.

    Args:
        session: Makes steps of the replays.
        mode: Returns the present mode.
    """

    def __init__(self, session: Session, mode: Callable[[], ModeKeys]) -> None:
        self._session = session
        self._mode = mode
        self._recordings = Recordings(session)
        self._graphs: weakref.WeakKeyDictionary[Any, GraphRecording] = (
            weakref.WeakKeyDictionary()
        )
        _watch(self)

    def remove(self) -> None:
        """Watch no longer."""
        _unwatch(self)

    def graph_begins(self, graph: Any) -> None:
        """Note that the current stream records from now on."""
        self._session.run(self._begin, graph)

    def graph_ends(self, graph: Any) -> None:
        """Note that the graph is about to stop recording."""
        recording = self._graphs.get(graph)
        if recording is not None:
            self._session.run(self._recordings.end, recording)

    def graph_replayed(self, graph: Any) -> None:
        """Note that the graph was put on the current stream."""
        recording = self._graphs.get(graph)
        if recording is not None:
            self._session.run(
                self._recordings.replayed, recording, self._mode(), *_current_stream()
            )

    def _begin(self, graph: Any) -> None:
        recording = self._recordings.begin(self._mode(), *_current_stream())
        if recording is not None:
            self._graphs[graph] = recording


def _current_stream() -> tuple[int, int]:
    """Return the current device and the handle of its current stream."""
    stream = torch.cuda.current_stream()
    return stream.device_index, stream.cuda_stream


# Wrapped method -> the callback after it.
_METHODS = {
    "capture_begin": "graph_begins",
    "capture_end": "graph_ends",
    "replay": "graph_replayed",
}
# The watchers; while there are any, the methods are wrapped.
_watchers: weakref.WeakSet[_Watcher] = weakref.WeakSet()


def _watch(watcher: _Watcher) -> None:
    """Call *watcher* when a graph has begun, has ended, or was replayed."""
    _watchers.add(watcher)
    kind: Any = torch.cuda.CUDAGraph
    for name, event in _METHODS.items():
        original = getattr(kind, name, None)
        if original is not None and not hasattr(original, "_tdbg_original"):
            setattr(kind, name, _wrapped(original, event))


def _unwatch(watcher: _Watcher) -> None:
    """Call *watcher* no longer."""
    _watchers.discard(watcher)
    if _watchers:
        return
    kind: Any = torch.cuda.CUDAGraph
    for name in _METHODS:
        original = getattr(getattr(kind, name, None), "_tdbg_original", None)
        if original is not None:
            setattr(kind, name, original)


def _wrapped(original: Callable[..., Any], event: str) -> Callable[..., Any]:
    ends = event == "graph_ends"

    @functools.wraps(original)
    def method(graph: Any, *args: Any, **kwargs: Any) -> Any:
        if ends:  # An end that raises is an end too.
            _notify(event, graph)
        result = original(graph, *args, **kwargs)
        if not ends:
            _notify(event, graph)
        return result

    method._tdbg_original = original  # type: ignore[attr-defined]
    return method


def _notify(event: str, graph: Any) -> None:
    for watcher in list(_watchers):
        getattr(watcher, event)(graph)
