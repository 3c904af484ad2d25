"""Reading a run, finished or not: docs/reading.md.

Imports no framework.
"""

from __future__ import annotations

from tdbg.trial.envelope import DURATION_FIELD, ENVELOPE_FIELDS, Envelope
from tdbg.trial.losses import LossSeries
from tdbg.trial.lost_records import LostRecords, WriterLostRecords, lost_by_writer
from tdbg.trial.opening import open_place
from tdbg.trial.overview import TensorOverview
from tdbg.trial.places import RunPlace
from tdbg.trial.profile import (
    DeviceUse,
    EnergyUse,
    Profile,
    RecordedWindow,
    energy_of,
)
from tdbg.trial.reports import RunOverhead, ScalarSeries, n_trained, stop_reason
from tdbg.trial.rivals import HiddenSteps, hidden_steps
from tdbg.trial.selection import StepState, mode_key
from tdbg.trial.series import SERIES_COLUMNS, Series
from tdbg.trial.statistics import Columns, Statistics
from tdbg.trial.steps import STEP_TABLE_DTYPE, waiting_for_steps
from tdbg.trial.tables import (
    STEP_COLUMNS,
    TABLES,
    Batch,
    Column,
    Kind,
    RunTable,
    Scope,
    StepNumbers,
    TableColumns,
    Words,
    arrow_type,
    record_batch,
    schema_of,
)
from tdbg.trial.tensor import TensorHandle, TensorStatistics
from tdbg.trial.tensor_table import TensorDescription
from tdbg.trial.training_steps import edges_of
from tdbg.trial.trial import Trial, create_trial
from tdbg.trial.values import Call
from tdbg.trial.writers import Attempt, EventRecord, FileProblem

__all__ = [
    "DURATION_FIELD",
    "ENVELOPE_FIELDS",
    "SERIES_COLUMNS",
    "STEP_COLUMNS",
    "STEP_TABLE_DTYPE",
    "TABLES",
    "Attempt",
    "Batch",
    "Call",
    "Column",
    "Columns",
    "DeviceUse",
    "EnergyUse",
    "Envelope",
    "EventRecord",
    "FileProblem",
    "HiddenSteps",
    "Kind",
    "LossSeries",
    "LostRecords",
    "Profile",
    "RecordedWindow",
    "RunOverhead",
    "RunPlace",
    "RunTable",
    "ScalarSeries",
    "Scope",
    "Series",
    "Statistics",
    "StepNumbers",
    "StepState",
    "TableColumns",
    "TensorDescription",
    "TensorHandle",
    "TensorOverview",
    "TensorStatistics",
    "Trial",
    "Words",
    "WriterLostRecords",
    "arrow_type",
    "create_trial",
    "edges_of",
    "energy_of",
    "hidden_steps",
    "lost_by_writer",
    "mode_key",
    "n_trained",
    "open_place",
    "record_batch",
    "schema_of",
    "stop_reason",
    "waiting_for_steps",
]
