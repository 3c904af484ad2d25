"""tdbg: a directory that smdebug wrote, converted when it was written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.reader.contenders import Arrays, smdebug_trial, tdbg_run
from tdbg.trial import create_trial


class Format(tdbg_run.Format):
    def __init__(self, folder: Path) -> None:
        self._written = smdebug_trial.Format(folder)
        self.path = self._written.path
        os.environ["TDBG_CACHE"] = str(folder / "cache")

    def write(self, steps: Iterator[Arrays]) -> None:
        self._written.write(steps)
        create_trial(self.path)  # What is timed finds it converted.

    def names(self) -> set[str]:
        # Without the input and the output of smdebug's module.
        return {name for name in super().names() if name.startswith("t")}
