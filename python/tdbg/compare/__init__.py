"""Two runs or more beside each other: what is the same, and where they diverge.

What the dashboard and the report of two runs show is computed here, once.  Imports no
framework.
"""

from __future__ import annotations

from tdbg.compare.axis import Axis
from tdbg.compare.divergence_points import (
    Divergence,
    DivergencePoint,
    divergence,
)
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
    "RATIO_FIELDS",
    "Axis",
    "Divergence",
    "DivergencePoint",
    "Ratios",
    "Value",
    "differences",
    "divergence",
    "facts_of",
    "flattened",
    "hyperparameters_of",
    "ratios",
    "settings_of",
]
