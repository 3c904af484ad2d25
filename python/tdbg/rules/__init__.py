"""Rules: find what is wrong with a training, where, and what to do about it.

``check`` judges a run, ``watch`` follows a run that is being written.  docs/rules.md
describes the rules and how to write one.  ``tdbg.rules.testing`` helps to test one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tdbg.rules.engine.engine import Engine, Report, check, watch
from tdbg.rules.parsing import (
    needs_of,
    parse_rules,
    resolve,
    with_absolute_path,
)
from tdbg.rules.registry import (
    BUILT_IN,
    default_rules,
    describe,
    get,
    is_in_file,
    make,
    names,
    register,
)
from tdbg.rules.rule import Rule, parameters_of
from tdbg.rules.runner import RuleStatus, Status
from tdbg.rules.sandbox.sandbox import Limits
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Idle,
    Table,
    TensorInfo,
    UnitTable,
    Window,
)
from tdbg.run.findings import Evidence, Finding, Severity, Stage

if TYPE_CHECKING:
    from tdbg.rules.builtin.activations.dead_embedding import DeadEmbedding
    from tdbg.rules.builtin.activations.dead_relu import DeadRelu
    from tdbg.rules.builtin.activations.saturated import SaturatedActivation
    from tdbg.rules.builtin.data.class_imbalance import ClassImbalance
    from tdbg.rules.builtin.data.confusion import Confusion
    from tdbg.rules.builtin.data.nlp_sequence_ratio import NLPSequenceRatio
    from tdbg.rules.builtin.data.not_normalized import NotNormalizedData
    from tdbg.rules.builtin.data.repeated import RepeatedData
    from tdbg.rules.builtin.data.unshuffled import UnshuffledData
    from tdbg.rules.builtin.gradients.exploding import ExplodingGradient
    from tdbg.rules.builtin.gradients.not_cleared import GradientsNotCleared
    from tdbg.rules.builtin.gradients.precision import PrecisionLoss
    from tdbg.rules.builtin.gradients.vanishing import VanishingGradient
    from tdbg.rules.builtin.loss.misuse import LossMisuse
    from tdbg.rules.builtin.loss.not_decreasing import LossNotDecreasing
    from tdbg.rules.builtin.loss.overfit import Overfit
    from tdbg.rules.builtin.loss.overtraining import Overtraining
    from tdbg.rules.builtin.loss.spike import LossSpike
    from tdbg.rules.builtin.loss.underfitting import Underfitting
    from tdbg.rules.builtin.runs.similar_across_runs import SimilarAcrossRuns
    from tdbg.rules.builtin.runs.stalled import StalledTraining
    from tdbg.rules.builtin.tensors.all_zero import AllZero
    from tdbg.rules.builtin.tensors.exploding import ExplodingTensor
    from tdbg.rules.builtin.tensors.unchanged import UnchangedTensor
    from tdbg.rules.builtin.tensors.variance import TensorVariance
    from tdbg.rules.builtin.trees.feature_importance import FeatureImportance
    from tdbg.rules.builtin.trees.tree_depth import TreeDepth
    from tdbg.rules.builtin.weights.dropout_in_evaluation import DropoutInEvaluation
    from tdbg.rules.builtin.weights.eval_mode import TrainedInEvalMode
    from tdbg.rules.builtin.weights.initialization import PoorWeightInitialization
    from tdbg.rules.builtin.weights.missing_gradient import MissingGradient
    from tdbg.rules.builtin.weights.not_in_optimizer import NotInOptimizer
    from tdbg.rules.builtin.weights.stopped_optimizer import StoppedOptimizer
    from tdbg.rules.builtin.weights.unregistered import UnregisteredParameter
    from tdbg.rules.builtin.weights.update_ratio import WeightUpdateRatio
    from tdbg.rules.builtin.weights.vanishing_rate import VanishingLearningRate
    from tdbg.rules.builtin.weights.zero_learning_rate import ZeroLearningRate

__all__ = [
    "OK",
    "UNKNOWN",
    "AllZero",
    "ClassImbalance",
    "Confusion",
    "DeadEmbedding",
    "DeadRelu",
    "Description",
    "DropoutInEvaluation",
    "Engine",
    "Evaluation",
    "Evidence",
    "ExplodingGradient",
    "ExplodingTensor",
    "FeatureImportance",
    "Finding",
    "GradientsNotCleared",
    "Idle",
    "Limits",
    "LossMisuse",
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
    "RepeatedData",
    "Report",
    "Rule",
    "RuleStatus",
    "SaturatedActivation",
    "Severity",
    "SimilarAcrossRuns",
    "Stage",
    "StalledTraining",
    "Status",
    "StoppedOptimizer",
    "Table",
    "TensorInfo",
    "TensorVariance",
    "TrainedInEvalMode",
    "TreeDepth",
    "UnchangedTensor",
    "Underfitting",
    "UnitTable",
    "UnregisteredParameter",
    "UnshuffledData",
    "VanishingGradient",
    "VanishingLearningRate",
    "WeightUpdateRatio",
    "Window",
    "ZeroLearningRate",
    "check",
    "default_rules",
    "describe",
    "get",
    "is_in_file",
    "make",
    "names",
    "needs_of",
    "parameters_of",
    "parse_rules",
    "register",
    "resolve",
    "watch",
    "with_absolute_path",
]


def __getattr__(name: str) -> object:
    # The module of a rule is imported on first use: there are many.
    if name in BUILT_IN:
        return getattr(importlib.import_module(BUILT_IN[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *BUILT_IN})
