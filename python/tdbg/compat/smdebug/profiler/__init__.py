"""``smdebug.profiler``: reads profiles, of smdebug's profiler or of runs of tdbg."""

from __future__ import annotations

from tdbg.compat.smdebug.left_out import refuse
from tdbg.compat.smdebug.profiler.damage import Damage, ProfilerFileError
from tdbg.compat.smdebug.profiler.events import (
    HorovodProfilerEvents,
    ProfilerSystemEvents,
    SMDataParallelProfilerEvents,
    SMProfilerEvents,
    SystemProfilerEventParser,
    TensorboardProfilerEvents,
    TraceEvent,
    TraceEventParser,
)
from tdbg.compat.smdebug.profiler.readers import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    MetricsReaderBase,
    S3AlgorithmMetricsReader,
    S3SystemMetricsReader,
)

__all__ = [
    "Damage",
    "HorovodProfilerEvents",
    "LocalAlgorithmMetricsReader",
    "LocalSystemMetricsReader",
    "MetricsReaderBase",
    "ProfilerFileError",
    "ProfilerSystemEvents",
    "S3AlgorithmMetricsReader",
    "S3SystemMetricsReader",
    "SMDataParallelProfilerEvents",
    "SMProfilerEvents",
    "SystemProfilerEventParser",
    "TensorboardProfilerEvents",
    "TraceEvent",
    "TraceEventParser",
]

__getattr__ = refuse(__name__)
