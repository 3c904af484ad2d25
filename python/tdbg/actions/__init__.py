"""Actions: what to do about a finding.

``tdbg.actions.make("webhook:https://...", run)`` makes an action for a run.  The
engine calls it with every finding that begins, gets worse or ends.  docs/actions.md
lists all actions.
"""

from __future__ import annotations

from tdbg.actions.action import Action, close_all, trouble_of
from tdbg.actions.delivery import Gate
from tdbg.actions.registry import ActionSpec, get, make, names, parse, read_specs
from tdbg.actions.stop import ReportOnly, Stop

__all__ = [
    "Action",
    "ActionSpec",
    "Gate",
    "ReportOnly",
    "Stop",
    "close_all",
    "get",
    "make",
    "names",
    "parse",
    "read_specs",
    "trouble_of",
]
