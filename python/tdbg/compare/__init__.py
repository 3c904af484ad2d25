"""Two runs or more beside each other: what is the same, and where they diverge.

What the dashboard and the report of two runs show is computed here, once.  Imports no
framework.
"""

from __future__ import annotations

from tdbg.compare.axis import Axis
from tdbg.compare.differ import diff
from tdbg.compare.difference import (
    ComparedSteps,
    DiffEvidence,
    RunDiff,
    TensorDifference,
)
from tdbg.compare.divergence_points import (
    Divergence,
    DivergencePoint,
    divergence,
)
from tdbg.compare.herd_band import FEWEST_RUNS, FURTHEST, Departure, Herd, herd, located
from tdbg.compare.matching import BY
from tdbg.compare.pairing import MissingName
from tdbg.compare.ratio import RATIO_FIELDS, Ratios, ratios
from tdbg.compare.setup import (
    Value,
    differences,
    facts_of,
    flattened,
    hyperparameters_of,
    settings_of,
)

__all__ = [
    "BY",
    "FEWEST_RUNS",
    "FURTHEST",
    "RATIO_FIELDS",
    "Axis",
    "ComparedSteps",
    "Departure",
    "DiffEvidence",
    "Divergence",
    "DivergencePoint",
    "Herd",
    "MissingName",
    "Ratios",
    "RunDiff",
    "TensorDifference",
    "Value",
    "diff",
    "differences",
    "divergence",
    "facts_of",
    "flattened",
    "herd",
    "hyperparameters_of",
    "located",
    "ratios",
    "settings_of",
]
