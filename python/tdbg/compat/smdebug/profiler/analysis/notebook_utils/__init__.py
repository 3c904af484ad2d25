"""``smdebug.profiler.analysis.notebook_utils``: plots of a profile, with matplotlib."""

from __future__ import annotations

from tdbg.compat.smdebug.profiler.analysis.notebook_utils.charts import (
    Heatmap,
    MetricsHistogram,
    StepHistogram,
    StepTimelineChart,
    TimelineCharts,
)
from tdbg.compat.smdebug.profiler.analysis.notebook_utils.training_job import (
    TrainingJob,
)

__all__ = [
    "Heatmap",
    "MetricsHistogram",
    "StepHistogram",
    "StepTimelineChart",
    "TimelineCharts",
    "TrainingJob",
]
