"""Where the time of a run went: phases, loaders, machines, ranks, and what to change.

Thread safety: functions over values, and ``TimeView``, which belongs to one thread.
"""

from __future__ import annotations

from tdbg.view.time.bins import BinColumns, even_edges
from tdbg.view.time.breakdown import Bands, PhaseBreakdown, PhaseShare
from tdbg.view.time.completeness import OwnCost
from tdbg.view.time.course import AFTER, STARTUP, JobPhase, SlowStep, Throughput
from tdbg.view.time.loading import LoaderUse, WhatIf, what_if
from tdbg.view.time.machine import MemoryUse
from tdbg.view.time.phases import (
    NAMES,
    ORDER,
    duration_text,
    names_of,
    percent_text,
    span_text,
)
from tdbg.view.time.programs import Line, Operators, newest_lines
from tdbg.view.time.ranks import Lateness, lateness_in
from tdbg.view.time.usage import Forecast, UsageMap, UsageRow
from tdbg.view.time.view import (
    NO_PROFILE,
    Change,
    TimeView,
    lines_at_end,
    step_breakdown,
    time_of,
)

__all__ = [
    "AFTER",
    "NAMES",
    "NO_PROFILE",
    "ORDER",
    "STARTUP",
    "Bands",
    "BinColumns",
    "Change",
    "Forecast",
    "JobPhase",
    "Lateness",
    "Line",
    "LoaderUse",
    "MemoryUse",
    "Operators",
    "OwnCost",
    "PhaseBreakdown",
    "PhaseShare",
    "SlowStep",
    "Throughput",
    "TimeView",
    "UsageMap",
    "UsageRow",
    "WhatIf",
    "duration_text",
    "even_edges",
    "lateness_in",
    "lines_at_end",
    "names_of",
    "newest_lines",
    "percent_text",
    "span_text",
    "step_breakdown",
    "time_of",
    "what_if",
]
