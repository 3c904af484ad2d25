"""``tdbg ls``: the runs of a folder, or the tensors of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tdbg.cli import accounts, options, output
from tdbg.errors import NotARun, TdbgError
from tdbg.modes import ModeKeys
from tdbg.run.directory import find_runs
from tdbg.trial import TensorOverview, Trial, create_trial
from tdbg.view import RunView, view_of

__all__ = ["command"]


@click.command("ls")
@click.argument("path", type=options.DIRECTORY, default="runs")
@options.regex
@options.collection
@options.mode
@options.no_mmap
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    path: str,
    regex: tuple[str, ...],
    collection: str | None,
    mode: ModeKeys,
    as_json: bool,
) -> None:
    """List the runs below PATH, or, if PATH is a run, its tensors."""
    if not Path(path).is_dir():
        msg = f"there is no folder {path}"
        raise NotARun(msg, file=path, kind="missing")
    found = find_runs(path)
    if found == [Path(path)]:
        trial = create_trial(path)
        view = view_of(trial)
        tensors = _tensors(trial, list(regex) or None, collection, mode)
        if as_json:
            output.emit_json(
                {
                    "run": path,
                    "state": trial.status,
                    **accounts.accounts(trial, view),
                    "tensors": tensors,
                }
            )
        else:
            _print_tensors(trial, view, tensors)
        accounts.exit_if_unread(ctx, trial.problems())
        return
    runs = [_run(run) for run in found]
    if as_json:
        output.emit_json({"folder": path, "runs": runs})
    elif runs:
        _print_runs(runs)
    else:
        output.console().print(output.plain(f"no run in {path}"))


def _run(path: Path) -> dict[str, Any]:
    """Describe a run; a run that cannot be read by its error."""
    try:
        return _described(path)
    except TdbgError as error:
        return {"run": str(path), "state": "unreadable", "error": str(error)}


def _described(path: Path) -> dict[str, Any]:
    trial = create_trial(str(path))
    view = view_of(trial)
    head = view.head
    return {
        "run": str(path),
        "state": head.status,
        "steps": head.steps,
        "recorded": head.recorded,
        "last_step": head.last_step,
        "problems": view.verdict.wrong,
        "findings": len(view.diagnosis.episodes),
        "lost": head.lost,
        "bytes": head.bytes,
        **accounts.accounts(trial, view),
    }


def _print_runs(runs: list[dict[str, Any]]) -> None:
    numbers = ("steps", "last loss", "problems", "lost", "size", "cost")
    rows = [
        (run["run"], run["state"], *["-"] * len(numbers))
        if "error" in run
        else (
            run["run"],
            accounts.state_text(run["state"], run["lost_records"]),
            str(run["steps"]),
            run["last_loss"]["text"] if run["last_loss"] else "-",
            _problems(run["verdict"]),
            str(run["lost"]),
            output.n_bytes(run["bytes"]),
            f"{run['cost']['share']:.1%}" if run["cost"]["is_telling"] else "-",
        )
        for run in runs
    ]
    out = output.console()
    out.print(output.table(("run", "state", *numbers), rows, right=numbers))
    for run in runs:
        if "error" in run:
            out.print(output.plain(f"{run['run']}: {run['error']}"))


def _problems(verdict: dict[str, Any]) -> str:
    """The number of problems; without any, why a run is not simply fine."""
    words = {"unjudged": "not judged", "starting": "-"}
    if verdict["tone"] == "warning" and not verdict["wrong"]:
        return "rule failed"
    return words.get(verdict["tone"], str(verdict["wrong"]))


def _tensors(
    trial: Trial, regex: list[str] | None, collection: str | None, mode: ModeKeys
) -> list[dict[str, Any]]:
    names = trial.tensor_names(mode=mode, regex=regex, collection=collection)
    return [
        {
            "name": tensor.what.name,
            "role": tensor.what.role,
            "dtype": tensor.what.dtype,
            "shape": _shape(trial, tensor, mode),
            "statistics": tensor.n_statistics,
            "values": tensor.n_values,
            "first_step": tensor.first_step,
            "last_step": tensor.last_step,
        }
        for tensor in trial.overview(names, mode)
    ]


def _shape(trial: Trial, tensor: TensorOverview, mode: ModeKeys) -> tuple[int, ...]:
    """Its shape at the last step."""
    if tensor.last_step is None:
        return ()
    if tensor.what.shape is not None:
        return tensor.what.shape
    return trial.tensor(tensor.what.name).shape(tensor.last_step, mode)


def _print_tensors(trial: Trial, view: RunView, tensors: list[dict[str, Any]]) -> None:
    numbers = ("statistics", "values")
    rows = [
        (
            tensor["name"],
            tensor["role"],
            tensor["dtype"],
            output.shape(tensor["shape"]),
            str(tensor["statistics"]),
            str(tensor["values"]),
            f"{tensor['first_step']}..{tensor['last_step']}",
        )
        for tensor in tensors
    ]
    columns = ("tensor", "role", "dtype", "shape", *numbers, "steps")
    out = output.console()
    output.print_table(columns, rows, out, right=numbers)
    state = accounts.state_text(view.head.status, trial.lost_records().to_json())
    n_bytes = output.n_bytes(view.head.bytes)
    out.print(f"{output.counted(len(tensors), 'tensor')}, {n_bytes}, {state}")
    accounts.print_accounts(trial, view, out)
