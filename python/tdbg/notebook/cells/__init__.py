"""What a cell of a notebook shows of a value: HTML without a script.

Importing this registers the functions that draw; tdbg does so when a notebook first
shows a value.
"""

from __future__ import annotations

from tdbg import shown
from tdbg.notebook.cells.findings import finding_html, report_html
from tdbg.notebook.cells.recorded import histogram_html, tensor_html, trial_html
from tdbg.notebook.plot import Plots
from tdbg.rules import Report
from tdbg.run.findings import Finding
from tdbg.stats.histogram import Histogram
from tdbg.trial import TensorHandle, Trial

__all__: list[str] = []

shown.register(Finding, finding_html)
shown.register(Histogram, histogram_html)
shown.register(Report, report_html)
shown.register(TensorHandle, tensor_html)
shown.register(Trial, trial_html)
shown.register(Trial, Plots, "plot")
