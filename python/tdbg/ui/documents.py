"""What a page shows of runs, as JSON: all but the numbers of charts.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any, Self

from tdbg.errors import TdbgError
from tdbg.run.annotations import NOTHING
from tdbg.run.in_use import state_at_a_glance
from tdbg.trial import Trial
from tdbg.ui.row_readers import RowReader, read_row, readers_for
from tdbg.ui.rows import viewed
from tdbg.ui.runs import OpenRun, Runs
from tdbg.ui.series import curve_names
from tdbg.view import RunRow, file_problems, in_forward_order, tensors_in

__all__ = [
    "describe_run",
    "described",
    "list_runs",
    "tell_runs",
    "tensors_of",
    "tree_sections",
]

# Threads that wait for the disk; Python runs in one of them at a time.
OPENERS = 4
# Rows that were read in so many seconds are told together: at first, and at most.
TOGETHER_SECONDS = 0.05
MOST_SECONDS = 0.4
MAX_EPISODES = 500
MAX_PROBLEMS = 50


def list_runs(runs: Runs) -> dict[str, Any]:
    """Every run at once: those in training first, then the newest.

    A run of which nothing is known yet, or something else by now, is there by name,
    time and state alone, without a ``verdict``: ``tell_runs`` reads it.

    Returns:
        ``places``, ``runs``, and under ``common`` the settings that all of them share,
        which are not in their records.
    """
    listed = [_listed(runs, id_) for id_ in runs.found()]
    listed.sort(key=lambda each: str(each.get("created", "")), reverse=True)
    listed.sort(key=lambda each: each.get("state") != "running")
    return {"places": runs.places, **_with_common(listed)}


def tell_runs(runs: Runs, ids: Sequence[str]) -> Generator[dict[str, Any]]:
    """What is said of some runs, in parts, as they are read; the first ones first.

    Yields:
        ``runs`` and ``common``, as ``list_runs`` has them.  Whoever asks for no more
        closes the iterator.
    """
    n_readers = readers_for(sum(not _is_known(runs, id_) for id_ in ids))
    seconds = TOGETHER_SECONDS
    with _Telling(runs, n_readers) as telling:
        waiting = {telling.row(id_): id_ for id_ in ids}
        while waiting:
            done = wait(waiting, timeout=seconds).done
            # A page draws the table anew for each part.
            seconds = min(2 * seconds, MOST_SECONDS)
            told = [each for each in waiting if each in done]
            if told:
                yield _with_common([each.result() for each in told])
            for each in told:
                del waiting[each]


class _Telling:
    """Threads that read rows, each with a process of its own if there are many."""

    def __init__(self, runs: Runs, n_readers: int) -> None:
        self._runs = runs
        self._readers = [RowReader() for _ in range(n_readers)]
        self._idle: SimpleQueue[RowReader] = SimpleQueue()
        for each in self._readers:
            self._idle.put(each)
        self._threads = ThreadPoolExecutor(n_readers or OPENERS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for each in self._readers:
            each.close()

    def row(self, id_: str) -> Future[dict[str, Any]]:
        return self._threads.submit(_told, self._runs, id_, self._read)

    def _read(self, path: str) -> dict[str, Any]:
        if not self._readers:
            return read_row(path)
        reader = self._idle.get()
        try:
            return reader.read(path)
        finally:
            self._idle.put(reader)


def _with_common(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return rows without the settings that all of them share, and these."""
    settings = [each["record"]["settings"] for each in rows if "record" in each]
    common = {
        name: value
        for name, value in (settings[0] if settings else {}).items()
        if all(name in each and each[name] == value for each in settings)
    }
    return {"common": common, "runs": [_without(each, common) for each in rows]}


def _without(row: dict[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    if "record" not in row:
        return row
    record = row["record"]
    own = {n: value for n, value in record["settings"].items() if n not in common}
    return {**row, "record": {**record, "settings": own}}


def _is_known(runs: Runs, id_: str) -> bool:
    try:
        return runs.known(id_) is not None
    except TdbgError:
        return True


def _listed(runs: Runs, id_: str) -> dict[str, Any]:
    try:
        known = runs.known(id_)
        if known is None:
            run = runs.description(id_)
            known = {"created": run.created, "state": state_at_a_glance(run)}
        return {**_named(runs, id_), **known}
    except TdbgError as error:
        return _unreadable(runs, id_, error)


def _told(
    runs: Runs, id_: str, read: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    try:
        return {**_named(runs, id_), **runs.row(id_, read)}
    except TdbgError as error:
        return _unreadable(runs, id_, error)


def _named(runs: Runs, id_: str) -> dict[str, Any]:
    """Name of a run, and what somebody said about it."""
    try:
        said = runs.annotation(id_).to_json()
    except TdbgError as error:
        said = {**NOTHING.to_json(), "unsaid": str(error)}
    return {"id": id_, "name": runs.name(id_), **said}


def _unreadable(runs: Runs, id_: str, error: TdbgError) -> dict[str, Any]:
    try:
        name = runs.name(id_)
    except TdbgError:
        name = id_
    return {"id": id_, "name": name, **RunRow(None, str(error)).to_json()}


def describe_run(runs: Runs, run: OpenRun, *, may_control: bool) -> dict[str, Any]:
    """All that the screens of one run show besides charts.

    Raises:
        TdbgError: If the run cannot be read.
    """
    document = run.kept("run", lambda: _as_judged(run))
    return {
        "id": run.id,
        "name": runs.name(run.id),
        "version": run.version(),
        "may_control": may_control,
        "now": time.time(),
        **document,
    }


def _as_judged(run: OpenRun) -> dict[str, Any]:
    """Return the document of a run, with how far its judging was before it was read."""
    judging = run.seen_judging
    told = None if judging is None else judging.to_json()
    return {"judging": told, **described(run.trial)}


def described(trial: Trial) -> dict[str, Any]:
    """Return the document of a run that no server has opened."""
    with trial.no_refresh():
        view, document = viewed(trial)
        episodes, statuses = view.diagnosis.episodes, view.diagnosis.statuses
        return {
            **document,
            "path": trial.path,
            "findings": [each.to_json() for each in episodes[:MAX_EPISODES]],
            "n_findings": len(episodes),
            "rules": {
                name: {
                    "status": str(data.get("status", "")),
                    "message": str(data.get("message", "")),
                    "applies": data.get("applies") is not False,
                }
                for name, data in statuses.items()
            },
            "workers": trial.worker_states(),
            "attempts": len(trial.attempts()),
            "modes": [mode.name for mode in trial.modes()],
            "curves": curve_names(trial),
            "problem_list": [
                {"kind": each.kind, "file": each.file, "message": each.message}
                for each in file_problems(trial)[:MAX_PROBLEMS]
            ],
            "n_tensors": tensors_in(trial).n,
            "changes": _changes(trial),
        }


def _changes(trial: Trial) -> list[dict[str, Any]]:
    """Return the requests to capture more, and what became of each."""
    return [
        {
            "step": trial.training_steps_at([event.step])[0],
            "global_step": event.step,
            "state": str(event.data.get("state", "")),
            "request": str(event.data.get("request", "")),
            "reason": str(event.data.get("reason") or ""),
            "until": event.data.get("until"),
        }
        for event in trial.events("change")
        if event.data.get("what") == "capture"
    ]


def tensors_of(trial: Trial) -> list[dict[str, Any]]:
    """Name, role, dtype and shape of each tensor, in the order of the forward.

    Parameters and their gradients stand in the order of the model, everything else as
    it first came in a step.
    """
    with trial.no_refresh():
        info = trial.model_info()
        found = trial.describe(in_forward_order(trial, trial.tensor_names()))
        return [
            {
                "name": each.name,
                "role": each.role,
                "dtype": each.dtype,
                "shape": None if each.shape is None else list(each.shape),
                "module": None if not info else info[-1].module_of(each.name),
            }
            for each in found
        ]


def tree_sections(trial: Trial) -> dict[str, Any]:
    """The sections of the report that are about trees, labels and predictions.

    Returns:
        Under ``sections`` of each its ``title`` and ``content``, a list of nodes as
        ``tdbg.drawing.markup`` has them: a page makes no markup out of text.  None for
        a run that is not one of boosted trees.
    """
    # Most runs have no trees: a server that shows none of them loads no report.
    from tdbg.drawing.markup import elements_of
    from tdbg.report import tree_sections as sections_of

    return {
        "sections": [
            {"title": title, "content": elements_of(content)}
            for title, content in sections_of(trial)
        ]
    }
