"""Reading a run, finished or not: docs/reading.md.

Imports no framework.
"""

from __future__ import annotations

from tdbg.trial._attempts import Attempt
from tdbg.trial._lookup import Call
from tdbg.trial._open import create_trial
from tdbg.trial._overhead import RunOverhead
from tdbg.trial._reports import ScalarSeries
from tdbg.trial._row import TensorStatistics
from tdbg.trial._states import StepState
from tdbg.trial._statistics import Statistics
from tdbg.trial._step_table import STEP_TABLE_DTYPE
from tdbg.trial._tensor import TensorHandle
from tdbg.trial._trial import Trial
from tdbg.trial._writer_view import EventRecord, Problem

__all__ = [
    "STEP_TABLE_DTYPE",
    "Attempt",
    "Call",
    "EventRecord",
    "Problem",
    "RunOverhead",
    "ScalarSeries",
    "Statistics",
    "StepState",
    "TensorHandle",
    "TensorStatistics",
    "Trial",
    "create_trial",
]
