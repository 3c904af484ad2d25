"""``Profiler``: what observes a training beside its tensors, from open to close.

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

from tdbg.capture.session import Session
from tdbg.profiler import stacks, step_rows
from tdbg.profiler.part import ProfilerPart, ProfilerSettings, Start

__all__ = ["OF_EVERY_RANK", "PARTS", "Profiler", "ProfilerPart", "ProfilerSettings"]


OF_EVERY_RANK: frozenset[Start] = frozenset({stacks.start})
"""The parts that ranks have, too, which write no run."""

PARTS: Sequence[Start] = (stacks.start, step_rows.start)
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
        settings: ProfilerSettings,
        parts: Sequence[Start] = PARTS,
    ) -> None:
        self.session = session
        self.settings = settings
        self.parts: list[ProfilerPart] = []
        self._pid = os.getpid()
        if not settings.enabled or not session.is_live:
            return
        writes = session.writes_as is not None
        for start in parts:
            if not writes and start not in OF_EVERY_RANK:
                continue
            part = session.run(start, session, settings)
            if part is not None:
                self.parts.append(part)
        session.listen(close=self.close, rest=self.close)

    def close(self) -> None:
        """Close the parts; in a forked child, only let go of them."""
        is_forked = os.getpid() != self._pid
        while self.parts:
            part = self.parts.pop()
            end = getattr(part, "forked", None) if is_forked else part.close
            if end is not None:
                with contextlib.suppress(Exception):
                    end()
