"""``tdbg ls``: the runs of a folder, or the tensors of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from tdbg import remote
from tdbg.cli import accounts, options, output
from tdbg.config.quantities import plural
from tdbg.errors import NotARun
from tdbg.modes import ModeKeys
from tdbg.remote import is_url
from tdbg.run.directory import find_runs
from tdbg.trial import TensorOverview, Trial, create_trial
from tdbg.view import RunRow, RunView, row_of, view_of

__all__ = ["command"]

# Runs of a store that are read at once.
AT_ONCE = 16


@click.command("ls")
@click.argument("path", type=options.DIRECTORY, default="runs")
@options.regex
@options.collection
@options.mode
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    path: str,
    regex: tuple[str, ...],
    collection: str | None,
    mode: ModeKeys | None,
    as_json: bool,
) -> None:
    """List the runs below PATH, or the tensors of PATH if it is a run."""
    found = _runs_at(path)
    if found == [_as_found(path)]:
        trial = create_trial(path)
        view = view_of(trial)
        tensors = _tensors(trial, list(regex) or None, collection, mode)
        if as_json:
            output.emit_json({"run": path, **view.to_json(), "tensors": tensors})
        else:
            _print_tensors(view, tensors)
        accounts.exit_if_unread(ctx, trial.problems())
        return
    runs = _rows(found)
    if as_json:
        listed = [{"run": run, **row.to_json()} for run, row in runs.items()]
        output.emit_json({"folder": path, "runs": listed})
    elif runs:
        _print_runs(runs)
    else:
        output.console().print(output.plain(f"no run in {path}"))


def _rows(runs: Sequence[str]) -> dict[str, RunRow]:
    """A row for each run; of a store, many are read at once."""
    if not runs or not is_url(runs[0]):
        return {run: row_of(run) for run in runs}
    with ThreadPoolExecutor(AT_ONCE, "tdbg-ls") as pool:
        return dict(zip(runs, pool.map(row_of, runs), strict=True))


def _runs_at(path: str) -> Sequence[str]:
    """The paths, or URLs, of the runs at or below one."""
    if is_url(path):
        return remote.find_runs(path)
    if not Path(path).is_dir():
        msg = f"there is no folder {path}"
        raise NotARun(msg, file=path, kind="missing")
    return [str(run) for run in find_runs(path)]


def _as_found(path: str) -> str:
    """A path as ``_runs_at`` gives it."""
    return path.rstrip("/") if is_url(path) else str(Path(path))


def _print_runs(runs: Mapping[str, RunRow]) -> None:
    numbers = ("steps", "last loss", "lost", "size", "cost")
    rows = [(run, *_cells(row, len(numbers))) for run, row in runs.items()]
    columns = ("run", "state", *numbers, "verdict")
    out = output.console()
    out.print(output.table(columns, rows, right=numbers, last_wraps=True))


def _cells(row: RunRow, n_numbers: int) -> list[str]:
    """The state of a run, its numbers, and what is wrong with it."""
    if row.view is None:
        return [row.state, *["-"] * n_numbers, row.error]
    head, loss = row.view.head, row.view.loss
    return [
        accounts.state_text(head.state, head.lost_records.in_order),
        f"{head.steps:,}",
        "-" if loss is None else loss.text,
        f"{head.lost_records.records:,}",
        output.n_bytes(head.bytes),
        "-" if head.cost is None else f"{head.cost:.1%}",
        row.view.verdict.short,
    ]


def _tensors(
    trial: Trial,
    regex: list[str] | None,
    collection: str | None,
    mode: ModeKeys | None,
) -> list[dict[str, Any]]:
    names = trial.tensor_names(mode=mode, regex=regex, collection=collection)
    found = trial.overview(names, mode)
    ends = {step for each in found for step in (each.first_step, each.last_step)}
    steps = sorted(step for step in ends if step is not None)
    # Asked at once: there may be 100,000 tensors.
    places = dict(zip(steps, trial.training_steps_at(steps), strict=True))
    return [
        {
            "name": tensor.what.name,
            "role": tensor.what.role,
            "dtype": tensor.what.dtype,
            "shape": _shape(trial, tensor, mode),
            "statistics": tensor.n_statistics,
            "values": tensor.n_values,
            **_span(places, tensor, mode),
        }
        for tensor in found
    ]


def _span(
    places: Mapping[int, int], tensor: TensorOverview, mode: ModeKeys | None
) -> dict[str, int | None]:
    """Its first and last step: of training, unless a mode counts its own."""
    first, last = tensor.first_step, tensor.last_step
    if mode is not None or first is None or last is None:
        return {"first_step": first, "last_step": last}
    return {
        "first_step": places[first],
        "last_step": places[last],
        "first_global_step": first,
        "last_global_step": last,
    }


def _shape(
    trial: Trial, tensor: TensorOverview, mode: ModeKeys | None
) -> tuple[int, ...]:
    """Its shape at the last step."""
    if tensor.last_step is None:
        return ()
    if tensor.what.shape is not None:
        return tensor.what.shape
    return trial.tensor(tensor.what.name).shape(
        tensor.last_step, mode or ModeKeys.GLOBAL
    )


def _print_tensors(view: RunView, tensors: list[dict[str, Any]]) -> None:
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
    lost = view.head.lost_records
    state = accounts.state_text(view.head.state, lost.in_order)
    n_bytes = output.n_bytes(view.head.bytes)
    out.print(f"{plural(len(tensors), 'tensor')}, {n_bytes}, {state}")
    accounts.print_accounts(view, out)
