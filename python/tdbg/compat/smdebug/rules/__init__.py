"""``smdebug.rules``: rules of one's own, and some of SageMaker's as they are."""

from __future__ import annotations

from tdbg.compat.smdebug.rules.rule import (
    RequiredTensors,
    RequiredTensorsForTrial,
    Rule,
    invoke_rule,
)
from tdbg.compat.smdebug.rules.sagemaker import (
    LossNotDecreasing,
    Overfit,
    Overtraining,
    PoorWeightInitialization,
    SimilarAcrossRuns,
)

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
