"""Actions: what to do about a finding.

``tdbg.actions.get("stop", run)`` gives the action of that name for a run.  An action
is called with every finding, when it begins, gets worse and ends.
"""

from __future__ import annotations

from tdbg.actions._base import Action, get, names
from tdbg.actions.report import Report
from tdbg.actions.stop import Stop

__all__ = ["Action", "Report", "Stop", "get", "names"]
