"""``smdebug.rules``: rules of one's own, and one of SageMaker's as it is."""

from __future__ import annotations

from tdbg.compat.smdebug.rules.loss_not_decreasing import LossNotDecreasing
from tdbg.compat.smdebug.rules.rule import (
    RequiredTensors,
    RequiredTensorsForTrial,
    Rule,
    invoke_rule,
)

__all__ = [
    "LossNotDecreasing",
    "RequiredTensors",
    "RequiredTensorsForTrial",
    "Rule",
    "invoke_rule",
]
