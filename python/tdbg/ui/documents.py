"""What a page shows of runs, as JSON: all but the numbers of charts.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

import time
from typing import Any

from tdbg.trial import Trial
from tdbg.ui.row import viewed
from tdbg.ui.runs import OpenRun, Runs
from tdbg.ui.series import curve_names
from tdbg.view import file_problems, in_forward_order, tensors_in

__all__ = [
    "describe_run",
    "described",
    "tensors_of",
    "tree_sections",
]

MAX_EPISODES = 500
MAX_PROBLEMS = 50


def describe_run(runs: Runs, run: OpenRun, *, may_control: bool) -> dict[str, Any]:
    """All that the screens of one run show besides charts.

    Raises:
        TdbgError: If the run cannot be read.
    """
    document = run.kept("run", lambda: _as_judged(run))
    return {
        "id": run.id,
        "name": runs.name(run.id),
        "is_far": runs.is_far(run.id),
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
