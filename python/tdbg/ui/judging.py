"""Judging of runs by the server itself: one at a time, in a process of its own.

What a page shows and nobody has judged is judged, the run on the screen first, then the
newest ones of the list.  The process has the lowest priority, as trainings come first
on a machine, and a limit of memory; it ends when the server does.

Thread safety: ``Judges`` may be used from any thread.

Errors: what keeps a run from being judged is its ``Judging.reason``.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal, Protocol

from tdbg.errors import TdbgError
from tdbg.rules import Engine
from tdbg.run.json_values import mapping_of
from tdbg.trial import Trial
from tdbg.view import ENDED

__all__ = ["Judges", "Judging"]

# Of a list so many runs are judged without being asked for.
MOST_LISTED = 16
# A training that goes on is judged again when it has grown by this factor.
AGAIN = 1.5
# Bytes that a judging process may hold: rules keep windows of rows, not runs.
MEMORY = 4 << 30
NICENESS = 19
# The order in which runs are judged: what somebody looks at, then what is listed.
SHOWN, LISTED = 0, 1

_State = Literal["waiting", "judging", "judged", "failed"]


@dataclass(frozen=True, slots=True)
class Judging:
    """How far the server is with judging a run.

    Attributes:
        state: waiting, judging, judged or failed.
        reason: Why it failed; empty otherwise.
        steps: Recorded steps that were judged so far.
    """

    state: _State
    reason: str = ""
    steps: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether it waits for its turn, or is judged now."""
        return self.state in ("waiting", "judging")

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {"state": self.state, "reason": self.reason, "steps": self.steps}


class Judged(Protocol):
    """A run that may be judged, as the server holds it.

    Attributes:
        id: What pages call it.
        trial: The run.
        judging: How far it is.
    """

    id: str
    trial: Trial
    judging: Judging | None


class Judges:
    """Judges runs, one after the other.

    Args:
        open_run: Returns the run of an id.
        by_itself: Whether what is shown is judged though nobody asks for it.
    """

    def __init__(
        self, open_run: Callable[[str], Judged], *, by_itself: bool = True
    ) -> None:
        self._open = open_run
        self._by_itself = by_itself
        self._lock = threading.Lock()
        # The runs that wait, and their order.
        self._queue: dict[str, tuple[int, int, Judged]] = {}
        self._known: dict[str, Judging] = {}
        self._n_asked = self._n_listed = 0
        self._is_at_work = False

    def state(self, id_: str) -> Judging | None:
        """Return how far a run is; None: this server has not judged it."""
        return self._known.get(id_)

    def start(self, run: Judged) -> dict[str, Any]:
        """Judge what a run holds now; return at once how far it is.

        Findings and statuses are written into the run, as they are by ``tdbg check``.
        Whoever asks while it is under way asks for the same.
        """
        with self._lock:
            known = self._known.get(run.id)
            if known is None or not known.is_under_way:
                known = self._put(run, SHOWN)
            return known.to_json()

    def show(self, run: Judged, document: Mapping[str, Any]) -> Judging | None:
        """Judge a run that is on a screen, if nobody has; return how far it is.

        Args:
            run: The run.
            document: What is said of it: ``verdict``, ``recorded``, ``state``,
                ``is_far``.
        """
        with self._lock:
            is_due = self._by_itself and _is_due(self._known.get(run.id), document)
            if is_due or run.id in self._queue:
                self._put(run, SHOWN)
            return self._known.get(run.id)

    def list(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Judge some of the runs of a list that nobody has judged, the newest first."""
        for document in documents:
            with self._lock:
                known = self._known.get(document["id"])
                if not self._by_itself or self._n_listed >= MOST_LISTED:
                    return
                is_over = document.get("state") in ENDED
                if known is None and is_over and _is_due(known, document):
                    with contextlib.suppress(TdbgError):
                        self._put(self._open(document["id"]), LISTED)
                        self._n_listed += 1

    def _put(self, run: Judged, urgency: int) -> Judging:
        """REQUIRES: the lock is held.  A run that is asked for twice is judged once."""
        self._n_asked += 1
        # What was shown last comes first; a list is in its own order.
        order = -self._n_asked if urgency == SHOWN else self._n_asked
        self._queue[run.id] = urgency, order, run
        found = Judging("waiting")
        if self._known.get(run.id) != found:
            self._tell(run, found)
        if not self._is_at_work:
            self._is_at_work = True
            threading.Thread(target=self._work, name="tdbg-judge", daemon=True).start()
        return found

    def _tell(self, run: Judged, judging: Judging) -> None:
        self._known[run.id] = run.judging = judging

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._is_at_work = False
                    return
                *_, run = min(self._queue.values(), key=lambda each: each[:2])
                del self._queue[run.id]
            self._judge(run)

    def _judge(self, run: Judged) -> None:
        self._tell(run, Judging("judging"))
        try:
            with _process(run.trial.path) as process:
                for line in process.stdout or ():
                    self._tell(run, _told(line))
        except OSError as error:
            self._tell(run, Judging("failed", str(error)))
        if self._known[run.id].is_under_way:
            why = f"its process ended with exit code {process.returncode}"
            self._tell(run, Judging("failed", why))


def _is_due(known: Judging | None, document: Mapping[str, Any]) -> bool:
    """Whether nobody has judged a run, or it has grown since this server did.

    Of one in a store, no finding would be kept.
    """
    if document.get("is_far"):
        return False
    recorded = document.get("recorded") or 0
    if known is None:
        tone = mapping_of(document.get("verdict")).get("tone")
        return bool(recorded) and tone == "unjudged"
    if known.state != "judged":
        return False
    has_ended = document.get("state") in ENDED
    return recorded > known.steps * (1 if has_ended else AGAIN)


def _process(path: str) -> subprocess.Popen[str]:
    """A process that judges a run, and says how far it is line by line."""
    code = "from tdbg.ui.judging import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, path],
        stdin=subprocess.PIPE,  # Open for as long as the server lives.
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def _told(line: str) -> Judging:
    found = json.loads(line)
    return Judging(found["state"], found.get("reason", ""), found.get("steps", 0))


def main() -> None:
    """Judge the run that the argument names; what a judging process runs."""
    path, says = sys.argv[1], sys.stdout
    sys.stdout = sys.stderr  # A rule of the user's own may print.
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    try:
        engine = Engine(path)
        engine.on_window = lambda: _say(
            says, "judging", steps=engine.report().n_recorded
        )
        engine.poll()
        engine.poll_idle()
        report = engine.finish()
    except MemoryError:
        limit = f"{MEMORY >> 30} GiB of memory are not enough"
        _say(says, "failed", reason=f"{limit}; judge it with tdbg check")
    except (TdbgError, OSError) as error:
        _say(says, "failed", reason=str(error))
    else:
        notes = "; ".join(report.notes)
        state: _State = "failed" if notes else "judged"
        _say(says, state, reason=notes, steps=report.n_recorded)


def _say(says: IO[str], state: _State, *, reason: str = "", steps: int = 0) -> None:
    told = Judging(state, reason, steps)
    print(json.dumps(told.to_json()), file=says, flush=True)


def _end_with_the_server() -> None:
    """Wait until the server is gone, and leave at once."""
    sys.stdin.read()
    os._exit(1)
