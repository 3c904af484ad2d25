"""Exports runs as files of other tools.

It reads a run through ``tdbg.trial`` and imports no framework; the packages of the
other tools are imported when a run is exported.
"""

from __future__ import annotations

from tdbg.export.at_end import ExportAtEnd, export_at_end
from tdbg.export.selection import ExportReport, Selection
from tdbg.export.tensorboard import export_tensorboard, follow_tensorboard
from tdbg.export.timeline import TimelineReport, export_chrome, export_perfetto

__all__ = [
    "ExportAtEnd",
    "ExportReport",
    "Selection",
    "TimelineReport",
    "export_at_end",
    "export_chrome",
    "export_perfetto",
    "export_tensorboard",
    "follow_tensorboard",
]
