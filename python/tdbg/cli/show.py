"""``tdbg show``: show statistics over steps, or a tensor's values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from tdbg.cli import accounts, options, output, summaries
from tdbg.config.quantities import plural
from tdbg.errors import TensorUnavailableForStep
from tdbg.modes import EVALUATION, ModeKeys
from tdbg.trial import TensorHandle, Trial, create_trial
from tdbg.view import view_of
from tdbg.view.time import time_of

__all__ = ["command", "print_run"]

# The columns of a tensor's history.
COLUMNS = ("mean", "std", "min", "max", "l1", "l2")


@click.command("show")
@options.run
@click.argument("name", required=False)
@click.option(
    "--step",
    type=int,
    help="Show the values at this training step, or its statistics where no values "
    "were saved; with --mode, at this step of the mode.",
)
@click.option(
    "--last",
    type=int,
    default=20,
    show_default=True,
    help="How many of the newest steps to show.",
)
@options.regex
@options.collection
@options.mode
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    name: str | None,
    step: int | None,
    last: int,
    regex: tuple[str, ...],
    collection: str | None,
    mode: ModeKeys | None,
    as_json: bool,
) -> None:
    """Show the statistics of RUN's tensors, or of the tensor NAME.

    Steps are training steps, and evaluation is shown at the training step at which it
    ran. Each mode gets its own table. --mode selects one; GLOBAL joins all steps.

    If NAME has histograms, you also see its quantiles and what narrow types would lose.
    """
    trial = create_trial(run)
    modes = _modes(trial) if mode is None else (mode,)
    if name is None:
        names = trial.tensor_names(
            mode=mode, regex=list(regex) or None, collection=collection
        )
        if as_json:
            output.emit_json(
                {
                    "run": run,
                    **view_of(trial).to_json(),
                    **_uploads_json(trial),
                    "tensors": [
                        summary.to_json()
                        for each in modes
                        for summary in summaries.summarize(trial, names, each)
                    ],
                }
            )
        else:
            print_run(trial, names, modes)
            _print_uploads(trial)
    elif step is not None:
        _show_values(trial, trial.tensor(name), step, mode, as_json)
    else:
        _show_history(trial, trial.tensor(name), last, modes, as_json)
    accounts.exit_if_unread(ctx, trial.problems())


def _uploads_json(trial: Trial) -> dict[str, Any]:
    """How the upload of a run at a URL is; nothing for one in a directory."""
    found = trial.uploads()
    return {} if found is None else {"uploads": found.to_json()}


def _print_uploads(trial: Trial) -> None:
    found, out = trial.uploads(), output.console()
    if found is None:
        return
    out.print(output.plain(f"in the store: {accounts.uploads_text(found)}"))
    if found.waiting_files:
        text = (
            f"on this machine: {plural(found.waiting_files, 'file')}, "
            f"{output.n_bytes(found.waiting_bytes)}, in {found.spool}"
        )
        out.print(output.plain(text))


def _modes(trial: Trial) -> Sequence[ModeKeys]:
    """The modes of a run with steps of several; else all steps together."""
    modes = trial.modes()
    return modes if len(modes) > 1 else (ModeKeys.GLOBAL,)


def print_run(
    trial: Trial,
    names: list[str],
    modes: Sequence[ModeKeys] | None = None,
    out: Console | None = None,
) -> None:
    """Print a line of statistics for each tensor, and what the run cost.

    Args:
        trial: The run.
        names: The tensors.
        modes: A table is printed for each; None: for each that the run has.
        out: The console.
    """
    out = out or output.console()
    tables = {
        mode: summaries.summarize(trial, names, mode) for mode in modes or _modes(trial)
    }
    tables = {mode: lines for mode, lines in tables.items() if lines}
    lost = trial.lost_records()
    if not tables:
        out.print("no statistics recorded yet")
        accounts.print_lost_records(lost, out)
        return
    for mode, lines in tables.items():
        if len(tables) > 1:
            n = trial.count_steps(mode)
            out.print(f"{mode.name}, {plural(n, 'step')}", style="bold")
        out.print(summaries.summary_table(lines, out.width))
    n_tensors = len({line.name for lines in tables.values() for line in lines})
    out.print(
        f"{plural(n_tensors, 'tensor')} at "
        f"{plural(trial.count_steps(), 'recorded step')}, "
        f"{output.n_bytes(trial.n_bytes)} on disk, "
        f"{accounts.state_text(trial.status, lost.in_order)}"
    )
    view = view_of(trial)
    accounts.print_accounts(view, out)
    for line in time_of(trial, view.diagnosis).lines:
        out.print(output.plain(line))


def _show_history(
    trial: Trial,
    tensor: TensorHandle,
    last: int,
    modes: Sequence[ModeKeys],
    as_json: bool,
) -> None:
    """Print a tensor's history for each mode, and its newest histogram."""
    recorded = {
        mode: steps
        for mode in modes
        if (steps := _recorded(trial, tensor, mode, "statistics"))
    }
    histories: dict[ModeKeys, list[dict[str, Any]]] = {
        mode: [
            {**trial.step_numbers(at), **_reductions(tensor, at)}
            for at in steps[-last:]
        ]
        for mode, steps in recorded.items()
    }
    found = [_recorded(trial, tensor, mode, "histograms")[-1:] for mode in modes]
    with_histogram = max(found, default=[])
    if as_json:
        rows = [row for history in histories.values() for row in history]
        (counting,) = modes if len(modes) == 1 else (ModeKeys.GLOBAL,)
        document: dict[str, Any] = {
            "tensor": tensor.name,
            "mode": counting.name,
            "history": sorted(rows, key=lambda row: row["global_step"]),
        }
        for at in with_histogram:
            histogram = tensor.histogram(at, ModeKeys.GLOBAL)
            numbers = trial.step_numbers(at)
            document["histogram"] = {**summaries.to_json(histogram), **numbers}
        output.emit_json(document)
        return
    out = output.console()
    newest = max((steps[-1] for steps in recorded.values()), default=None)
    extents = ""
    if newest is not None:
        extents = output.shape(tensor.shape(newest, ModeKeys.GLOBAL))
    out.print(output.plain(f"{tensor.name}  {tensor.role}  {tensor.dtype}  {extents}"))
    for mode, history in histories.items():
        if len(histories) > 1:
            out.print(mode.name, style="bold")
        out.print(_history_table(mode, history))
    for at in with_histogram:
        (step,) = trial.training_steps_at([at])
        histogram = tensor.histogram(at, ModeKeys.GLOBAL)
        summaries.print_histogram(histogram, step, out)


def _history_table(mode: ModeKeys, history: Sequence[dict[str, Any]]) -> Table:
    """Draw a tensor's history in a mode, with a sparkline below each column."""
    # What --step expects, beside where evaluation stands in the training.
    own = (f"{mode.name} step",) if mode in EVALUATION else ()
    lines = [
        [
            f"{row['step']:,}",
            *(f"{row['mode_step']:,}" for _ in own),
            *(output.number(row[c]) for c in COLUMNS),
        ]
        for row in history
    ]
    drawn = [summaries.sparkline([row[c] for row in history], 10) for c in COLUMNS]
    lines.append(["", *("" for _ in own), *drawn])
    columns = ("step", *own, *COLUMNS)
    return output.table(columns, lines, right=columns)


def _reductions(tensor: TensorHandle, step: int) -> dict[str, float]:
    """The columns of a row; extremes of integers are exact."""
    row = tensor.stats(step, ModeKeys.GLOBAL)
    exact = {c: getattr(row, c) for c in ("min", "max")}
    return {c: tensor.reduction_value(step, c, ModeKeys.GLOBAL) for c in COLUMNS} | {
        c: value for c, value in exact.items() if isinstance(value, int)
    }


def _recorded(
    trial: Trial, tensor: TensorHandle, mode: ModeKeys, what: str
) -> list[int]:
    """Return the global steps of a mode at which a tensor was saved."""
    steps = tensor.steps(ModeKeys.GLOBAL, what)
    if mode is ModeKeys.GLOBAL:
        return steps
    table = trial.step_table()
    of_mode = table["step"][table["mode"] == mode.value]
    found: list[int] = np.intersect1d(steps, of_mode, assume_unique=True).tolist()
    return found


def _show_values(
    trial: Trial, tensor: TensorHandle, step: int, mode: ModeKeys | None, as_json: bool
) -> None:
    try:
        value = tensor.value(step, mode)
    except TensorUnavailableForStep:
        if step not in tensor.steps(mode, what="statistics"):
            raise
        _show_row(trial, tensor, step, mode, as_json)
        return
    if as_json:
        document: dict[str, Any] = {
            "tensor": tensor.name,
            **_numbers(trial, tensor, step, mode),
            "dtype": tensor.dtype,
            "shape": value.shape,
            "values": value.astype(object).tolist(),
        }
        output.emit_json(document)
        return
    with np.printoptions(precision=4, linewidth=100, threshold=200):
        output.console().print(
            output.plain(
                f"{tensor.name} at {_step_text(step, mode)}: "
                f"{tensor.dtype} {value.shape}"
            )
        )
        click.echo(str(value))


def _numbers(
    trial: Trial, tensor: TensorHandle, step: int, mode: ModeKeys | None
) -> dict[str, Any]:
    at = tensor.global_step(step, mode)
    return {} if at is None else trial.step_numbers(at)


def _step_text(step: int, mode: ModeKeys | None) -> str:
    return f"step {step:,}" if mode is None else f"{mode.name} step {step:,}"


def _show_row(
    trial: Trial, tensor: TensorHandle, step: int, mode: ModeKeys | None, as_json: bool
) -> None:
    """Show the statistics at a step without values."""
    row = tensor.stats(step, mode)
    extents = tensor.shape(step, mode)
    statistics = {each.name: getattr(row, each.name) for each in fields(row)}
    statistics |= {"std": row.std, "rms": row.rms}
    if as_json:
        document: dict[str, Any] = {
            "tensor": tensor.name,
            **_numbers(trial, tensor, step, mode),
            "dtype": tensor.dtype,
            "shape": extents,
            "values": None,
            "statistics": statistics,
        }
        output.emit_json(document)
        return
    out = output.console()
    what = f"{tensor.name} at {_step_text(step, mode)}: {tensor.dtype} {extents}"
    out.print(output.plain(f"{what}, statistics only (no values were saved)"))
    rows = [(name, output.number(value)) for name, value in statistics.items()]
    out.print(output.table(("statistic", "value"), rows, right=("value",)))
