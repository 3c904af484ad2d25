"""Exports a run to TensorBoard at the end of its training, in the training's process.

Hooks call it once the run is closed: it reads the run from disk, as everybody else.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tdbg.config.options import SessionOptions
from tdbg.config.quantities import plural
from tdbg.errors import ConfigurationError
from tdbg.export.event_files import require_tensorboard
from tdbg.export.tensorboard import FOLDER, export_tensorboard
from tdbg.run.aside import Unanswered, call_aside
from tdbg.trial import create_trial

__all__ = ["SECONDS", "ExportAtEnd", "export_at_end"]

# A training that has ended does not wait longer for its plots.
SECONDS = 60.0
# Its last files are closed in this time.
GRACE_SECONDS = 10.0

_log = logging.getLogger("tdbg")


def export_at_end(
    run: str | os.PathLike[str] | None,
    out: str | os.PathLike[str] | None,
    options: SessionOptions,
) -> ExportAtEnd | None:
    """Make the export that a hook calls when its run is closed.

    Args:
        run: The run's directory.
        out: The folder; None: ``tensorboard`` in that of the run.
        options: Options of the session.

    Returns:
        The export; None in a process that does not write the run.  Without the package
        ``tensorboard`` a warning says so at once: who installs it while the training
        goes on has the files at its end.
    """
    if run is None or options.dry_run or options.rank not in options.workers:
        return None
    made = ExportAtEnd(run, out, leads=options.rank == options.workers[0])
    try:
        require_tensorboard()
    except ConfigurationError as error:
        _log.warning(
            "%s; the training continues, and `%s` writes the files afterwards",
            error,
            made.command,
        )
    return made


class ExportAtEnd:
    """Exports a run when it is called; the call never raises.

    Args:
        run: The run's directory.
        out: The folder; None: ``tensorboard`` in that of the run.
        leads: Whether to export in any case. One of several ranks does; another rank
            exports only if all ranks have ended, so that the last one completes the
            export.

    Attributes:
        n_failed: Number of exports that failed, or could not be finished in time.
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
        self.out = self.out.absolute()  # The training may change its directory.
        self.n_failed = 0
        self._leads = leads

    @property
    def command(self) -> str:
        """The command that makes the same files."""
        return f"tdbg export tensorboard {self.run} --out {self.out}"

    def __call__(self) -> None:
        """Export the run; count and log failures."""
        try:
            # Aside, as the disk may hang.
            call_aside(self._export, SECONDS + GRACE_SECONDS)
        except Unanswered:
            self._fail("the file system does not answer")
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _export(self) -> None:
        trial = create_trial(self.run)
        if not (self._leads or trial.loaded_all_steps):
            return
        # Values of collections without histograms must not be made into some.
        report = export_tensorboard(
            trial, self.out, histograms="stored", timeout=SECONDS, beside=True
        )
        if trial.loaded_all_steps and not report.complete:
            n = plural(report.steps, "step")
            self._fail(f"{SECONDS:.0f} s were not enough; exported {n}")

    def _fail(self, why: str) -> None:
        self.n_failed += 1
        _log.warning(
            "the export to TensorBoard is incomplete (%s); `%s` completes it",
            why,
            self.command,
        )
