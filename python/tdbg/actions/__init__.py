"""Actions: what to do about a finding.

``tdbg.actions.make("webhook:https://...", run)`` gives an action for a run.  It is
called with every finding, when it begins, gets worse and ends; docs/actions.md lists
them.
"""

from __future__ import annotations

from tdbg.actions._base import Action, close_all, trouble_of
from tdbg.actions.gate import Gate
from tdbg.actions.kinds import names
from tdbg.actions.registry import get, make
from tdbg.actions.report import Report
from tdbg.actions.spec import ActionSpec, parse, read_specs
from tdbg.actions.stop import Stop

__all__ = [
    "Action",
    "ActionSpec",
    "Gate",
    "Report",
    "Stop",
    "close_all",
    "get",
    "make",
    "names",
    "parse",
    "read_specs",
    "trouble_of",
]
