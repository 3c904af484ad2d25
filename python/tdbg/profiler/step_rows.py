"""Rows of steps: where the time of each step went.

The session measures (``Session.clock``); this writes its rows about once a second.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

import numpy as np

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler.part import ProfilerPart
from tdbg.run.profile_tables import STEP

__all__ = ["start"]


def start(session: Session, _: ProfilerConfig) -> ProfilerPart:
    """Measure the steps of a session from now on."""
    return StepRows(session)


class StepRows:
    """Writes the rows of a session's steps.

    Args:
        session: The session, which measures its steps from now on.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        session.measure_steps()
        session.listen(rows=self.write)

    def write(self) -> None:
        """Write the rows that are complete."""
        rows = np.frombuffer(self._session.clock.take_rows(), STEP)
        if len(rows):
            self._session.write_samples("step", rows)

    def close(self) -> None:
        """Write what is there; the session asks once more when its last step ends."""
        self.write()
