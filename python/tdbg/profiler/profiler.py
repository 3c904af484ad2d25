"""``Profiler``: observes a training beside its tensors, from open to close.

It consists of parts, each in a module of its own.  A part is added by one line in
``PARTS``; it is started with the session and closed with it.

Thread safety: the training's thread starts and closes it.

Errors: none.  A part that fails to start is left out, and the session counts the error
like any of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.errors import ConfigurationError
from tdbg.profiler import (
    checkpoints,
    clipping,
    collectives,
    compilations,
    fingerprints,
    framework_loaders,
    gc_pauses,
    loaders,
    python_sampler,
    stacks,
    step_rows,
    system,
    windows,
)
from tdbg.profiler.part import ProfilerPart, Start
from tdbg.run.profile_requests import PROFILE, SETTINGS, ProfileRequest
from tdbg.run.requests import Request
from tdbg.run.schema import EventKind

__all__ = ["OF_EVERY_RANK", "PARTS", "Profiler"]

OF_EVERY_RANK: frozenset[Start] = frozenset({stacks.start})
"""The parts that a rank has, too, if it writes no run."""

PARTS: Sequence[Start] = (
    stacks.start,
    step_rows.start,
    fingerprints.start,
    loaders.start,
    framework_loaders.start,
    collectives.start,
    python_sampler.start,
    gc_pauses.start,
    compilations.start,
    checkpoints.start,
    clipping.start,
    windows.start,
    system.start,
)
"""The parts, in the order in which they start; they are closed in reverse."""


class Profiler:
    """The parts of one session, all of them or none.

    Args:
        session: The session; one that writes no run starts only ``OF_EVERY_RANK``.
        settings: What the user asks for.
        parts: Starts the parts.

    Attributes:
        session: As it was given; parts write through it.
        settings: As they were given.
        parts: The parts that run.
    """

    def __init__(
        self,
        session: Session,
        settings: ProfilerConfig,
        parts: Sequence[Start] = PARTS,
    ) -> None:
        self.session = session
        self.settings = settings
        self.parts: list[ProfilerPart] = []
        self._pid = os.getpid()
        self._starts = parts
        if not session.is_live:
            return
        if session.writes_as is not None:
            requests = session.obedience.on_request
            requests[PROFILE] = requests[SETTINGS] = self._take
        if settings.enabled:
            self._start()
        session.listen(close=self.close, rest=self.close)

    def _start(self) -> None:
        session = self.session
        writes = session.writes_as is not None
        for start in self._starts:
            if not writes and start not in OF_EVERY_RANK:
                continue
            part = session.run(start, session, self.settings)
            if part is not None:
                self.parts.append(part)

    def _take(self, request: Request) -> None:
        """Change the settings as a request asks, or say why not."""
        told: dict[str, Any] = {"what": "profiler", "request": request.id}
        try:
            asked = ProfileRequest.parse(request.body)
            if asked.window is not None:
                msg = "the profiler is off: turn it on first (--set enabled=on)"
                raise ConfigurationError(msg)
            self.change(self.settings.changed(asked.settings))
            told |= {"state": "accepted", "by": asked.who}
            told["settings"] = self.settings.to_json()
        except (ConfigurationError, TypeError, ValueError, RecursionError) as error:
            told |= {"state": "refused", "reason": str(error)[:1000]}
            if request.type == PROFILE:
                told |= {"what": "profile_window", "id": request.id}
        self.session.write_event(EventKind.CHANGE, told)

    def change(self, settings: ProfilerConfig) -> None:
        """Go on with other settings; parts that have a ``change`` are told of them."""
        was_on, self.settings = self.settings.enabled, settings
        if settings.enabled and not was_on:
            self._start()
        elif was_on and not settings.enabled:
            self.close()
            self.session.obedience.on_request[PROFILE] = self._take
        else:
            for part in self.parts:
                change = getattr(part, "change", None)
                if change is not None:
                    self.session.run(change, settings)

    def close(self) -> None:
        """Close the parts; in a forked child, only let go of them."""
        is_forked = os.getpid() != self._pid
        while self.parts:
            part = self.parts.pop()
            end = getattr(part, "forked", None) if is_forked else part.close
            if end is not None:
                with contextlib.suppress(Exception):
                    end()
