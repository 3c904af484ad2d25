"""Writes findings and rule statuses into the run, as events.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import json
import os
import uuid

from tdbg import _core
from tdbg.errors import TdbgError
from tdbg.rules.runner import RuleStatus
from tdbg.run.directory import open_run
from tdbg.run.findings import Finding
from tdbg.run.schema import EventKind

__all__ = ["FindingWriter"]

# The severity of events that have none: docs/format.md.
NO_SEVERITY = 0
# Longest text of an event, in characters; an event may have 1 MiB.
MAX_TEXT = 100_000
NOT_ALL = "not all findings could be recorded in the run"


class FindingWriter:
    """Writes events by a writer of its own; errors end up in ``trouble``.

    Args:
        run_directory: The run.

    Attributes:
        trouble: Why nothing, or not everything, could be recorded, or "".
    """

    def __init__(self, run_directory: str | os.PathLike[str]) -> None:
        self.trouble = ""
        self._capture: _core.Capture | None = None
        try:
            run = open_run(run_directory)
            self._capture = _core.Capture(
                str(run.path),
                run_uuid=run.uuid,
                attempt_uuid=uuid.uuid4().bytes,
                role="engine",
            )
        except (TdbgError, OSError) as error:
            self.trouble = f"findings could not be recorded in the run: {error}"

    def write_finding(self, finding: Finding) -> None:
        """Write a finding at its step."""
        self._event(
            finding.step, EventKind.FINDING, int(finding.severity), finding.to_json()
        )

    def write_status(self, status: RuleStatus, step: int) -> None:
        """Write the status of a rule, which has changed."""
        self._event(step, EventKind.STATUS, NO_SEVERITY, status.to_json())

    def flush(self) -> None:
        """Make everything written visible to readers."""
        if self._capture is None:
            return
        try:
            self._capture.flush()
        except TdbgError as error:
            self.trouble = f"{NOT_ALL}: {error}"

    def close(self) -> None:
        """Flush and close the writer; later calls do nothing."""
        capture, self._capture = self._capture, None
        if capture is not None and not capture.close():
            self.trouble = NOT_ALL

    def _event(
        self, step: int, kind: int, severity: int, document: dict[str, object]
    ) -> None:
        if self._capture is None:
            return
        for key, value in document.items():
            if isinstance(value, str):
                document[key] = value[:MAX_TEXT]
        content = json.dumps(document).encode()
        if not self._capture.event(step, kind, severity, content):
            self.trouble = NOT_ALL
