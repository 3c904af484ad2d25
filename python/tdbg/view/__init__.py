"""How a run is, as plain values: the only place that derives it.

The dashboard, reports, notebooks and the command line render these values and compute
nothing of their own, so that every one of them says the same sentence and the same
numbers about a run.

Thread safety: functions over values, and over a trial whose lock they hold inside.
"""

from __future__ import annotations

from tdbg.view.coverage import Coverage, RoleCoverage, gaps_of, interval_of
from tdbg.view.curves import (
    LastLoss,
    is_number,
    last_loss,
    last_value,
    loss_series,
    loss_text,
    series_of,
)
from tdbg.view.distributions import QUANTILES, Distribution, Histograms
from tdbg.view.head import ENDED, Head, file_problems, head_of
from tdbg.view.layers import MAP_FIELDS, Cells, in_forward_order, layer_cells
from tdbg.view.problems import (
    Diagnosis,
    Episode,
    Problem,
    accused_tensors,
    diagnosis_of,
    diagnosis_of_report,
    diagnosis_of_run,
)
from tdbg.view.run import UNREADABLE, RunRow, RunView, not_read, row_of, view_of
from tdbg.view.tensors import are_trees, loss_names, tensors_in
from tdbg.view.verdict import Verdict, verdict_of, verdict_of_rules

__all__ = [
    "ENDED",
    "MAP_FIELDS",
    "QUANTILES",
    "UNREADABLE",
    "Cells",
    "Coverage",
    "Diagnosis",
    "Distribution",
    "Episode",
    "Head",
    "Histograms",
    "LastLoss",
    "Problem",
    "RoleCoverage",
    "RunRow",
    "RunView",
    "Verdict",
    "accused_tensors",
    "are_trees",
    "diagnosis_of",
    "diagnosis_of_report",
    "diagnosis_of_run",
    "file_problems",
    "gaps_of",
    "head_of",
    "in_forward_order",
    "interval_of",
    "is_number",
    "last_loss",
    "last_value",
    "layer_cells",
    "loss_names",
    "loss_series",
    "loss_text",
    "not_read",
    "row_of",
    "series_of",
    "tensors_in",
    "verdict_of",
    "verdict_of_rules",
    "view_of",
]
