"""``smdebug.rules``: rules of one's own."""

from __future__ import annotations

from tdbg.compat.smdebug.rules.req_tensors import (
    RequiredTensors,
    RequiredTensorsForTrial,
)
from tdbg.compat.smdebug.rules.rule import Rule
from tdbg.compat.smdebug.rules.rule_invoker import invoke_rule

__all__ = ["RequiredTensors", "RequiredTensorsForTrial", "Rule", "invoke_rule"]
