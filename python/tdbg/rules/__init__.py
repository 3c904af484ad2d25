"""Rules: what is wrong with a training, where, and what to do about it.

``check`` judges a run, ``watch`` follows one that is being written; docs/rules.md
describes the rules and how to write one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tdbg.findings import Finding, Severity
from tdbg.rules._base import Rule
from tdbg.rules.asking import needs_of, resolve
from tdbg.rules.engine.engine import Engine, Report, check, watch
from tdbg.rules.isolation.process import Limits
from tdbg.rules.quiet import Quiet
from tdbg.rules.registry import (
    BUILT_IN,
    default_rules,
    describe,
    get,
    make,
    names,
    register,
)
from tdbg.rules.status import RuleStatus, Status
from tdbg.rules.window import (
    Description,
    Judgement,
    Table,
    TensorInfo,
    UnitTable,
    Window,
)

if TYPE_CHECKING:
    from tdbg.rules.activations.dead_embedding import DeadEmbedding
    from tdbg.rules.activations.dead_relu import DeadRelu
    from tdbg.rules.activations.saturated import SaturatedActivation
    from tdbg.rules.data.class_imbalance import ClassImbalance
    from tdbg.rules.data.confusion import Confusion
    from tdbg.rules.data.inputs import NotNormalizedData
    from tdbg.rules.data.tokens import NLPSequenceRatio
    from tdbg.rules.gradients.exploding import ExplodingGradient
    from tdbg.rules.gradients.precision import PrecisionLoss
    from tdbg.rules.gradients.vanishing import VanishingGradient
    from tdbg.rules.loss.generalization import Overfit, Overtraining
    from tdbg.rules.loss.not_decreasing import LossNotDecreasing
    from tdbg.rules.loss.spike import LossSpike
    from tdbg.rules.loss.underfitting import Underfitting
    from tdbg.rules.runs.other_runs import SimilarAcrossRuns
    from tdbg.rules.runs.stalled import StalledTraining
    from tdbg.rules.tensors.all_zero import AllZero
    from tdbg.rules.tensors.non_finite import ExplodingTensor
    from tdbg.rules.tensors.unchanged import UnchangedTensor
    from tdbg.rules.tensors.variance import TensorVariance
    from tdbg.rules.trees import FeatureImportance, TreeDepth
    from tdbg.rules.weights.eval_mode import TrainedInEvalMode
    from tdbg.rules.weights.initialization import PoorWeightInitialization
    from tdbg.rules.weights.learning_rate import ZeroLearningRate
    from tdbg.rules.weights.missing_gradient import MissingGradient
    from tdbg.rules.weights.not_in_optimizer import NotInOptimizer
    from tdbg.rules.weights.updates import WeightUpdateRatio

__all__ = [
    "AllZero",
    "ClassImbalance",
    "Confusion",
    "DeadEmbedding",
    "DeadRelu",
    "Description",
    "Engine",
    "ExplodingGradient",
    "ExplodingTensor",
    "FeatureImportance",
    "Finding",
    "Judgement",
    "Limits",
    "LossNotDecreasing",
    "LossSpike",
    "MissingGradient",
    "NLPSequenceRatio",
    "NotInOptimizer",
    "NotNormalizedData",
    "Overfit",
    "Overtraining",
    "PoorWeightInitialization",
    "PrecisionLoss",
    "Quiet",
    "Report",
    "Rule",
    "RuleStatus",
    "SaturatedActivation",
    "Severity",
    "SimilarAcrossRuns",
    "StalledTraining",
    "Status",
    "Table",
    "TensorInfo",
    "TensorVariance",
    "TrainedInEvalMode",
    "TreeDepth",
    "UnchangedTensor",
    "Underfitting",
    "UnitTable",
    "VanishingGradient",
    "WeightUpdateRatio",
    "Window",
    "ZeroLearningRate",
    "check",
    "default_rules",
    "describe",
    "get",
    "make",
    "names",
    "needs_of",
    "register",
    "resolve",
    "watch",
]


def __getattr__(name: str) -> object:
    # Each rule's module is imported when it is asked for: there are many.
    if name in BUILT_IN:
        return getattr(importlib.import_module(BUILT_IN[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *BUILT_IN})
