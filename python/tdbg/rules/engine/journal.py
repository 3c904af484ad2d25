"""Findings and statuses as events of the run, by a writer of the engine's own.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import json
import os
import uuid

from tdbg import _core
from tdbg.errors import TdbgError
from tdbg.findings import Finding
from tdbg.rules.status import RuleStatus
from tdbg.run_directory import open_run

__all__ = ["Journal"]

# Kinds of events and the severity of those that have none: docs/format.md.
FINDING = 4
STATUS = 5
NO_SEVERITY = 0
# A message is cut to this many characters; an event may have 1 MiB.
MAX_TEXT = 100_000


class Journal:
    """Writes events; says once, in ``trouble``, if it cannot, and is quiet then.

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

    def finding(self, finding: Finding) -> None:
        """Record what was found."""
        self._event(finding.step, FINDING, int(finding.severity), finding.to_json())

    def status(self, status: RuleStatus, step: int) -> None:
        """Record that a rule's status has changed."""
        self._event(step, STATUS, NO_SEVERITY, status.to_json())

    def flush(self) -> None:
        """Make what was recorded visible to readers."""
        if self._capture is None:
            return
        try:
            self._capture.flush()
        except TdbgError as error:
            self.trouble = f"not all findings could be recorded in the run: {error}"

    def close(self) -> None:
        """Write what is left."""
        capture, self._capture = self._capture, None
        if capture is not None and not capture.close():
            self.trouble = "not all findings could be recorded in the run"

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
            self.trouble = "not all findings could be recorded in the run"
