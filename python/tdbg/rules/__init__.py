"""Rules: what is wrong with a training, where, and what to do about it.

``check`` judges a run, ``watch`` follows one that is being written; docs/rules.md
describes the rules and how to write one.
"""

from __future__ import annotations

from tdbg.findings import Finding, Severity
from tdbg.rules._base import Rule
from tdbg.rules.activations import DeadRelu
from tdbg.rules.engine import Engine, Report, check, watch
from tdbg.rules.gradients import VanishingGradient
from tdbg.rules.loss import LossNotDecreasing
from tdbg.rules.quiet import Quiet
from tdbg.rules.registry import (
    default_rules,
    get,
    make,
    names,
    needs_of,
    register,
    resolve,
)
from tdbg.rules.status import RuleStatus, Status
from tdbg.rules.tensors import ExplodingTensor, UnchangedTensor
from tdbg.rules.window import (
    Description,
    Judgement,
    Table,
    TensorInfo,
    UnitTable,
    Window,
)

__all__ = [
    "DeadRelu",
    "Description",
    "Engine",
    "ExplodingTensor",
    "Finding",
    "Judgement",
    "LossNotDecreasing",
    "Quiet",
    "Report",
    "Rule",
    "RuleStatus",
    "Severity",
    "Status",
    "Table",
    "TensorInfo",
    "UnchangedTensor",
    "UnitTable",
    "VanishingGradient",
    "Window",
    "check",
    "default_rules",
    "get",
    "make",
    "names",
    "needs_of",
    "register",
    "resolve",
    "watch",
]
