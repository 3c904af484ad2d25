"""``smdebug.rules``: rules of one's own, and some of SageMaker's as they are."""

from __future__ import annotations

from tdbg.compat.smdebug.rules.loss_not_decreasing import LossNotDecreasing
from tdbg.compat.smdebug.rules.overfit import Overfit
from tdbg.compat.smdebug.rules.overtraining import Overtraining
from tdbg.compat.smdebug.rules.poor_weight_initialization import (
    PoorWeightInitialization,
)
from tdbg.compat.smdebug.rules.rule import (
    RequiredTensors,
    RequiredTensorsForTrial,
    Rule,
    invoke_rule,
)
from tdbg.compat.smdebug.rules.similar_across_runs import SimilarAcrossRuns

__all__ = [
    "LossNotDecreasing",
    "Overfit",
    "Overtraining",
    "PoorWeightInitialization",
    "RequiredTensors",
    "RequiredTensorsForTrial",
    "Rule",
    "SimilarAcrossRuns",
    "invoke_rule",
]
