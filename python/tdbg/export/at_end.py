"""Exports a run to TensorBoard when its training has ended, from the training itself.

For the public faces of hooks, which call it once the run is closed: the write side
and this meet only on disk.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tdbg.capture.opening import SessionOptions
from tdbg.export.events import require_tensorboard
from tdbg.export.tensorboard import FOLDER, export_tensorboard
from tdbg.trial import create_trial

__all__ = ["SECONDS", "ExportAtEnd", "export_at_end"]

# A training that has ended does not wait longer for its plots.
SECONDS = 60.0

_log = logging.getLogger("tdbg")


def export_at_end(
    run: str | os.PathLike[str] | None,
    out: str | os.PathLike[str] | None,
    options: SessionOptions,
) -> ExportAtEnd | None:
    """What to call when the run is closed; None in a process that does not write it.

    Args:
        run: The run's directory.
        out: The folder; None: ``tensorboard`` in that of the run.
        options: Of the session.

    Raises:
        ConfigurationError: If the package ``tensorboard`` is missing.
    """
    require_tensorboard()
    if run is None or options.dry_run or options.rank not in options.workers:
        return None
    return ExportAtEnd(run, out, leads=options.rank == options.workers[0])


class ExportAtEnd:
    """Exports a run when it is called; never raises then.

    Args:
        run: The run's directory.
        out: The folder; None: ``tensorboard`` in that of the run.
        leads: Whether it exports whatever is there. Of several ranks one does; the
            others only if all have ended, so that the last one exports the rest.

    Attributes:
        n_failed: How many exports failed, or could not be finished in time.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        out: str | os.PathLike[str] | None = None,
        *,
        leads: bool = True,
    ) -> None:
        self.run = Path(run).expanduser().absolute()
        self.out = self.run / FOLDER if out is None else Path(out).expanduser()
        self.out = self.out.absolute()  # Wherever the training goes meanwhile.
        self.n_failed = 0
        self._leads = leads

    def __call__(self) -> None:
        """Export what there is; what goes wrong is counted and logged."""
        try:
            trial = create_trial(self.run)
            if not (self._leads or trial.loaded_all_steps):
                return
            # Histograms of raw values would be of collections that refuse them.
            report = export_tensorboard(
                trial, self.out, histograms="stored", timeout=SECONDS, beside=True
            )
            if trial.loaded_all_steps and not report.complete:
                self._fail(f"{SECONDS:.0f} s were enough for {report.steps} steps")
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        self.n_failed += 1
        _log.warning(
            "the export to TensorBoard is not complete (%s); "
            "`tdbg export tensorboard %s --out %s` makes it",
            why,
            self.run,
            self.out,
        )
