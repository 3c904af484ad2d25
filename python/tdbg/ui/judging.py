"""Judges a run that nobody has judged, in the server, as ``tdbg check`` does.

Thread safety: may be used from any thread.  One run is judged at a time, in a thread of
its own that does not keep the server from ending.

Errors: what goes wrong is what the page is told; none reaches who asked.
"""

from __future__ import annotations

import threading
from typing import Any

from tdbg.errors import TdbgError
from tdbg.rules import Engine
from tdbg.ui.runs import Judging, OpenRun

__all__ = ["Judge"]


class Judge:
    """Runs all rules over runs, one run after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def start(self, run: OpenRun) -> dict[str, Any]:
        """Judge what the run holds now; returns at once how far it is.

        Findings and statuses are written into the run, as they are by ``tdbg check``.
        Whoever asks while it is under way asks for the same.
        """
        with self._lock:
            judging = run.judging
            if judging is None or judging.state in ("judged", "failed"):
                # Returned below as it was begun: a small run may be judged by then.
                judging = run.judging = Judging("waiting")
                threading.Thread(
                    target=self._judge, args=(run,), name="tdbg-judge", daemon=True
                ).start()
            return judging.to_json()

    def _judge(self, run: OpenRun) -> None:
        with self._turn:
            run.judging = Judging("judging")
            try:
                engine = Engine(run.trial.path)
                engine.poll()
                engine.poll_idle()
                report = engine.finish()
            except (TdbgError, OSError) as error:
                run.judging = Judging("failed", str(error))
            else:
                notes = "; ".join(report.notes)
                run.judging = Judging("failed" if notes else "judged", notes)
