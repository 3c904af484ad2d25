"""The write side of a profile: where a training's time goes, and on what machine.

It stands on ``capture``, whose session writes its tables (``run/profile_tables.py``).
"""

from __future__ import annotations

from tdbg.profiler.any_loader import measured
from tdbg.profiler.checkpoints import Checkpoints
from tdbg.profiler.collectives import Collectives
from tdbg.profiler.compilations import Compilations
from tdbg.profiler.fingerprints import Fingerprints
from tdbg.profiler.gc_pauses import CollectorPauses
from tdbg.profiler.loaders import Loaders, worker_processes
from tdbg.profiler.profiler import Profiler
from tdbg.profiler.python_sampler import PythonSampler
from tdbg.profiler.spans import NamedSpan, Spans
from tdbg.profiler.stacks import StackAnswers
from tdbg.profiler.step_rows import StepRows

__all__ = [
    "Checkpoints",
    "Collectives",
    "CollectorPauses",
    "Compilations",
    "Fingerprints",
    "Loaders",
    "NamedSpan",
    "Profiler",
    "PythonSampler",
    "Spans",
    "StackAnswers",
    "StepRows",
    "measured",
    "worker_processes",
]
