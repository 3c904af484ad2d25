"""Exports a run to TensorBoard: docs/tensorboard.md.

    from tdbg.export import export_tensorboard

    export_tensorboard("runs/digits", "tb/digits", statistics=["l2"])

Each mode is a run of TensorBoard: ``tb/digits/TRAIN``, ``tb/digits/EVAL``.  A step is
written when it is complete, and steps are written in order, so that following a run
only appends to the files.

Thread safety: functions; one export into a folder at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tdbg.errors import ConfigurationError, StorageError
from tdbg.export.event_files import ExportFolder, require_tensorboard
from tdbg.export.selection import ExportPlan, ExportReport, Selection
from tdbg.export.steps import Writing
from tdbg.importers import is_cached
from tdbg.remote import is_url
from tdbg.trial import Trial, create_trial

__all__ = ["FOLDER", "export_tensorboard", "follow_tensorboard"]

FOLDER = "tensorboard"
LOOK_SECONDS = 1.0

Progress = Callable[[int, int], None]


def export_tensorboard(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str] | None = None,
    *,
    regex: str | Iterable[str] | None = None,
    collection: str | None = None,
    statistics: Iterable[str] = (),
    histograms: str = "all",
    steps: str = "training",
    timeout: float | None = None,
    progress: Progress | None = None,
    beside: bool = False,
) -> ExportReport:
    """Write what a run has so far as event files of TensorBoard.

    The files hold losses, scalars, and histograms of all tensors that have them.  They
    replace an earlier export of the run into the same folder as a whole, at the end.

    Args:
        run: The run, or a trial of it.
        out: The folder; None: ``tensorboard`` in that of the run.
        regex: Export only names in which one of these expressions is found.
        collection: Export only members of this collection.
        statistics: Statistics of tensors to export as numbers: see ``Selection``.
        histograms: "all": also histograms of raw values, where none were stored;
            "stored"; or "none".
        steps: Which number steps have: where they stand in the "training", their number
            in their "mode", or their "global" number.
        timeout: Seconds after which the export ends with the steps that it has; also
            the seconds to wait for another export into the folder.  None: it exports
            everything, and does not wait.
        progress: Called now and then with the numbers of steps done and of all steps.
        beside: Whether the folder may hold exports of other runs.

    Raises:
        ConfigurationError: If the package ``tensorboard`` is missing, an argument can
            never work, or the folder contains the export of another run.
        NotARun: If there is no run.
        QueryError: If there is no such collection.
        StorageError: If the run cannot be read or the folder cannot be written.
    """
    selection = Selection(
        regex=regex,
        collection=collection,
        statistics=statistics,
        histograms=histograms,
        steps=steps,
    )
    deadline = None if timeout is None else time.monotonic() + timeout
    messages = require_tensorboard()
    trial = run if isinstance(run, Trial) else create_trial(run)
    ExportPlan.of(trial, selection)  # Raises before anything is written.
    with _folder(trial, out, beside=beside, wait=timeout or 0.0) as folder:
        writing = Writing(trial, folder, selection, messages)
        writing.advance(deadline, progress)
        folder.publish()
        return writing.report()


def follow_tensorboard(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str] | None = None,
    *,
    interval: float = LOOK_SECONDS,
    progress: Progress | None = None,
    **selection: Any,
) -> Iterator[ExportReport]:
    """Export a run as ``export_tensorboard`` does, until its training has ended.

    Args:
        run: The run, or a trial of it.
        out: As for ``export_tensorboard``.
        interval: Seconds between two reads of the run.
        progress: As for ``export_tensorboard``; called during the first read only.
        selection: regex, collection, statistics, histograms and steps.

    Yields:
        A report of all that was written so far, each time that something was.

    Raises:
        TdbgError: As ``export_tensorboard`` does.
    """
    chosen = Selection(**selection)
    messages = require_tensorboard()
    trial = run if isinstance(run, Trial) else create_trial(run)
    ExportPlan.of(trial, chosen)
    with _folder(trial, out) as folder:
        writing = Writing(trial, folder, chosen, messages)
        while True:
            if writing.advance(None, progress):
                folder.publish()
                yield writing.report()
            progress = None
            if writing.has_all:
                return
            time.sleep(interval)


def _folder(
    trial: Trial,
    out: str | os.PathLike[str] | None,
    *,
    beside: bool = False,
    wait: float = 0.0,
) -> ExportFolder:
    if out is None and (is_url(trial.path) or is_cached(trial.path)):
        is_far = is_url(trial.path)
        what = f"{trial.path} is in a store" if is_far else "this is smdebug's output"
        msg = f"{what}: say in which folder to write the export"
        raise ConfigurationError(msg)
    if out is None:
        path = Path(trial.path) / FOLDER
        if path.is_symlink():  # Whoever made the run says where; we do not follow.
            msg = f"{path} is a symbolic link: say where to export to"
            raise StorageError(msg, file=str(path), kind="io")
    else:
        path = Path(out).expanduser()
    return ExportFolder(path, trial.uuid, trial.created, beside=beside, wait=wait)
