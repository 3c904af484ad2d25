"""Rules: find what is wrong with a training, where, and what to do about it.

``check`` judges a run, ``watch`` follows a run that is being written.  docs/rules.md
describes the rules and how to write one.  ``tdbg.rules.testing`` helps to test one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tdbg.rules.catalog import BUILT_IN
from tdbg.rules.engine.engine import Engine, Report, check, watch
from tdbg.rules.learning import learn
from tdbg.rules.learnt.invariants import (
    InvariantFile,
    LearntInvariant,
    read_invariants,
)
from tdbg.rules.parsing import (
    needs_of,
    parse_rules,
    resolve,
    with_absolute_path,
)
from tdbg.rules.registry import (
    REPORTED,
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
    from tdbg.rules.catalog import *  # noqa: F403

__all__ = [
    "OK",
    "REPORTED",
    "UNKNOWN",
    "Description",
    "Engine",
    "Evaluation",
    "Evidence",
    "Finding",
    "Idle",
    "InvariantFile",
    "LearntInvariant",
    "Limits",
    "Report",
    "Rule",
    "RuleStatus",
    "Severity",
    "Stage",
    "Status",
    "Table",
    "TensorInfo",
    "UnitTable",
    "Window",
    "check",
    "default_rules",
    "describe",
    "get",
    "is_in_file",
    "learn",
    "make",
    "names",
    "needs_of",
    "parameters_of",
    "parse_rules",
    "read_invariants",
    "register",
    "resolve",
    "watch",
    "with_absolute_path",
]
__all__ += list(BUILT_IN)


def __getattr__(name: str) -> object:
    # The module of a rule is imported on first use: there are many.
    if name in BUILT_IN:
        return getattr(importlib.import_module(BUILT_IN[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *BUILT_IN})
