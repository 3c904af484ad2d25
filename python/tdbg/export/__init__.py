"""Runs, written as files of other tools.

Reads a run through ``tdbg.trial`` and imports no framework; the packages of those
tools are loaded when something is exported.
"""

from __future__ import annotations

from tdbg.export.report import ExportReport
from tdbg.export.selection import Selection
from tdbg.export.tensorboard import export_tensorboard, follow_tensorboard

__all__ = ["ExportReport", "Selection", "export_tensorboard", "follow_tensorboard"]
