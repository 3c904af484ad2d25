"""Exports runs as files of other tools.

It reads a run through ``tdbg.trial`` and imports no framework; the packages of the
other tools are imported when a run is exported.
"""

from __future__ import annotations

from tdbg.export.at_end import ExportAtEnd, export_at_end
from tdbg.export.new_files import FilesReport
from tdbg.export.parquet import PARQUET_TABLES, export_parquet
from tdbg.export.selection import STEPS, ExportPlan, ExportReport, Selection
from tdbg.export.steps import Pass, StepWindow
from tdbg.export.tensorboard import export_tensorboard, follow_tensorboard
from tdbg.export.timeline import TimelineReport, export_chrome, export_perfetto
from tdbg.export.values import export_npz, export_safetensors
from tdbg.export.zarr_store import export_zarr

__all__ = [
    "PARQUET_TABLES",
    "STEPS",
    "ExportAtEnd",
    "ExportPlan",
    "ExportReport",
    "FilesReport",
    "Pass",
    "Selection",
    "StepWindow",
    "TimelineReport",
    "export_at_end",
    "export_chrome",
    "export_npz",
    "export_parquet",
    "export_perfetto",
    "export_safetensors",
    "export_tensorboard",
    "export_zarr",
    "follow_tensorboard",
]
