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
        tensors = _tensors(trial, list(regex) or None, collection, mode)
        if as_json:
            output.emit_json(
                {
                    "run": path,
                    "state": trial.status,
                    "lost_records": trial.lost_records().to_json(),
                    "cost": trial.overhead().to_json(),
                    "tensors": tensors,
                }
            )
        else:
            _print_tensors(trial, tensors)
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
    steps = trial.steps(show_incomplete_steps=True)
    losses = trial.lost_records()
    return {
        "run": str(path),
        "state": trial.status,
        "steps": len(steps),
        "last_step": steps[-1] if steps else None,
        "findings": len(
            {(each.rule, each.tensor, each.first_step) for each in trial.findings()}
        ),
        "lost": losses.records,
        "lost_records": losses.to_json(),
        "bytes": trial.n_bytes,
        "cost": trial.overhead().to_json(),
    }


def _print_runs(runs: list[dict[str, Any]]) -> None:
    numbers = ("steps", "last step", "findings", "lost", "size", "cost")
    rows = [
        (run["run"], run["state"], *["-"] * len(numbers))
        if "error" in run
        else (
            run["run"],
            accounts.state_text(run["state"], run["lost_records"]),
            str(run["steps"]),
            "-" if run["last_step"] is None else str(run["last_step"]),
            str(run["findings"]),
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


def _print_tensors(trial: Trial, tensors: list[dict[str, Any]]) -> None:
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
    losses = trial.lost_records()
    state = accounts.state_text(trial.status, losses.to_json())
    out.print(f"{len(tensors)} tensors, {output.n_bytes(trial.n_bytes)}, {state}")
    accounts.print_lost_records(losses, out)
    out.print(output.plain(str(trial.overhead())))
