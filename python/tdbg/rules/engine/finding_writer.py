"""Writes findings and rule statuses into the run, as events, if they are news.

Into a run at a URL, too: the events are sent there (``tdbg.remote.Outbox``).

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from tdbg._core import Capture
from tdbg.errors import TdbgError
from tdbg.remote import Outbox, is_url
from tdbg.rules.runner import RuleStatus
from tdbg.run.directory import open_run
from tdbg.run.findings import Finding
from tdbg.run.schema import EventKind

if TYPE_CHECKING:
    from tdbg.trial import Trial

__all__ = ["FindingWriter"]

# The severity of events that have none: docs/format.md.
NO_SEVERITY = 0
# Longest text of an event, in characters; an event may have 1 MiB.
MAX_TEXT = 100_000
NOT_ALL = "not all findings could be recorded in the run"


class FindingWriter:
    """Writes events by a writer of its own; errors end up in ``trouble``.

    A verdict that the run has already is not written again: what is recorded waits
    until something is news, and for ever if nothing is.

    Args:
        run: Its directory or URL.
        trial: A trial of it, which says what engines have written before.

    Attributes:
        trouble: Why nothing, or not everything, could be recorded, or "".
    """

    def __init__(self, run: str | os.PathLike[str], trial: Trial) -> None:
        self.trouble = ""
        self._run = run
        self._outbox: Outbox | None = None
        self._known = _Verdicts()
        for event in trial.events():
            if event.kind in ("finding", "status"):
                self._known.add(event.data, event.writer)
        self._new = _Verdicts()
        self._waiting: list[tuple[int, int, int, bytes]] | None = []
        self._capture: Capture | None = None

    def write_finding(self, finding: Finding) -> None:
        """Record a finding at its step."""
        document = finding.to_json()
        self._event(finding.step, EventKind.FINDING, int(finding.severity), document)

    def write_status(self, status: RuleStatus, step: int) -> None:
        """Record the status of a rule, which has changed."""
        self._event(step, EventKind.STATUS, NO_SEVERITY, status.to_json())

    def begin(self) -> None:
        """Write from now on whatever is recorded, and what waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        try:
            self._capture = self._open()
        except (TdbgError, OSError) as error:
            self.trouble = f"findings could not be recorded in the run: {error}"
        for event in waiting:
            self._write(*event)

    def _open(self) -> Capture:
        if is_url(self._run):
            self._outbox = Outbox(os.fspath(self._run))
            return _writer_of(self._outbox.path, self._outbox.shard_age)
        return _writer_of(self._run)

    def flush(self) -> None:
        """Make everything written visible to readers; begin if there is news."""
        if self._waiting is not None and not self._new.are_in(self._known):
            self.begin()
        if self._capture is None:
            return
        try:
            self._capture.flush()
        except TdbgError as error:
            self.trouble = f"{NOT_ALL}: {error}"

    def close(self) -> None:
        """Flush and close the writer; later calls do nothing."""
        if self._waiting is not None and not self._new.equal(self._known):
            self.begin()
        self._waiting = None
        capture, self._capture = self._capture, None
        if capture is not None and not capture.close():
            self.trouble = NOT_ALL
        outbox, self._outbox = self._outbox, None
        unsent = "" if outbox is None else outbox.close()
        if unsent:
            self.trouble = f"{NOT_ALL}: {unsent}"

    def _event(
        self, step: int, kind: int, severity: int, document: dict[str, object]
    ) -> None:
        for key, value in document.items():
            if isinstance(value, str):
                document[key] = value[:MAX_TEXT]
        event = step, kind, severity, json.dumps(document).encode()
        if self._waiting is None:
            self._write(*event)
        else:
            self._new.add(document, "")
            self._waiting.append(event)

    def _write(self, step: int, kind: int, severity: int, content: bytes) -> None:
        if self._capture is None:
            return
        if not self._capture.event(step, kind, severity, content):
            self.trouble = NOT_ALL


def _writer_of(run: str | os.PathLike[str], shard_age: float = 0.0) -> Capture:
    made = open_run(run)
    return Capture(
        str(made.path),
        run_uuid=made.uuid,
        attempt_uuid=uuid.uuid4().bytes,
        role="engine",
        shard_age=shard_age,
    )


class _Verdicts:
    """The verdicts of engines on each rule; the last engine that judged counts."""

    def __init__(self) -> None:
        self._writers: dict[str, str] = {}
        self._findings: dict[str, Counter[str]] = {}
        self._statuses: dict[str, dict[str, object]] = {}

    def add(self, document: dict[str, object], writer: str) -> None:
        """Take in a finding or a status, which names its rule."""
        rule = document.get("rule")
        if not isinstance(rule, str):
            return  # The hook has statuses of its own.
        if self._writers.get(rule) != writer:
            self._writers[rule] = writer
            self._findings[rule] = Counter()
        if "status" in document:
            self._statuses[rule] = document
        else:
            # The cause may be of a rule that does not judge this time.
            content = {key: document[key] for key in document if key != "cause"}
            self._findings[rule][json.dumps(content, sort_keys=True)] += 1

    def are_in(self, known: _Verdicts) -> bool:
        """Whether all findings are known."""
        return all(
            found <= known._findings.get(rule, Counter())
            for rule, found in self._findings.items()
        )

    def equal(self, known: _Verdicts) -> bool:
        """Whether findings and last statuses are those that are known."""
        return all(
            found == known._findings.get(rule)
            and self._statuses.get(rule) == known._statuses.get(rule)
            for rule, found in self._findings.items()
        )
