"""``tdbg show``: statistics over steps, or the values of a tensor."""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from rich.console import Console

from tdbg.cli import accounts, options, output, summaries
from tdbg.modes import ModeKeys
from tdbg.trial import TensorHandle, Trial, create_trial

__all__ = ["command", "print_run"]

# The columns of a tensor's history.
COLUMNS = ("mean", "std", "min", "max", "l1", "l2")


@click.command("show")
@options.run
@click.argument("name", required=False)
@click.option("--step", type=int, help="Show the values at this step.")
@click.option("--last", type=int, default=20, show_default=True, help="How many steps.")
@options.regex
@options.collection
@options.mode
@options.no_mmap
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
    mode: ModeKeys,
    as_json: bool,
) -> None:
    """Show the statistics of RUN's tensors, or of the one called NAME.

    Of a tensor that has histograms also quantiles, and what narrow types would lose.
    """
    trial = create_trial(run)
    if name is None:
        names = trial.tensor_names(
            mode=mode, regex=list(regex) or None, collection=collection
        )
        if as_json:
            output.emit_json(
                {
                    "run": run,
                    "state": trial.status,
                    "losses": trial.losses().to_json(),
                    "cost": trial.overhead().to_json(),
                    "tensors": [
                        s.to_json() for s in summaries.summarize(trial, names, mode)
                    ],
                }
            )
        else:
            print_run(trial, names, mode)
    elif step is not None:
        _show_values(trial.tensor(name), step, mode, as_json)
    else:
        _show_history(trial.tensor(name), last, mode, as_json)
    accounts.exit_if_unread(ctx, trial.problems())


def print_run(
    trial: Trial,
    names: list[str],
    mode: ModeKeys = ModeKeys.GLOBAL,
    out: Console | None = None,
) -> None:
    """Print a line of statistics for each tensor, and what the run cost."""
    out = out or output.console()
    lines = summaries.summarize(trial, names, mode)
    losses = trial.losses()
    if not lines:
        out.print("no statistics yet")
        accounts.print_losses(losses, out)
        return
    out.print(summaries.summary_table(lines, out.width))
    out.print(
        f"{len(lines)} tensors over {trial.count_steps()} steps, "
        f"{output.n_bytes(trial.n_bytes)} on disk, "
        f"{accounts.state_text(trial.status, losses.to_json())}, "
        f"{losses.records} records lost"
    )
    accounts.print_losses(losses, out)
    out.print(output.plain(str(trial.overhead())))


def _show_history(
    tensor: TensorHandle, last: int, mode: ModeKeys, as_json: bool
) -> None:
    steps = tensor.steps(mode, what="statistics")[-last:]
    history = [
        {"step": step, **{c: tensor.reduction_value(step, c, mode) for c in COLUMNS}}
        for step in steps
    ]
    with_histogram = tensor.steps(mode, what="histograms")[-1:]
    if as_json:
        document: dict[str, Any] = {
            "tensor": tensor.name,
            "mode": mode.name,
            "history": history,
        }
        for at in with_histogram:
            document["histogram"] = summaries.to_json(tensor.histogram(at, mode), at)
        output.emit_json(document)
        return
    rows = [
        [str(row["step"]), *(output.number(row[c]) for c in COLUMNS)] for row in history
    ]
    rows.append(
        ["", *(summaries.sparkline([row[c] for row in history], 10) for c in COLUMNS)]
    )
    extents = output.shape(tensor.shape(steps[-1], mode)) if steps else ""
    out = output.console()
    out.print(output.plain(f"{tensor.name}  {tensor.role}  {tensor.dtype}  {extents}"))
    out.print(output.table(("step", *COLUMNS), rows, right=("step", *COLUMNS)))
    for at in with_histogram:
        summaries.print_histogram(tensor.histogram(at, mode), at, out)


def _show_values(
    tensor: TensorHandle, step: int, mode: ModeKeys, as_json: bool
) -> None:
    value = tensor.value(step, mode)
    if as_json:
        document: dict[str, Any] = {
            "tensor": tensor.name,
            "step": step,
            "mode": mode.name,
            "dtype": tensor.dtype,
            "shape": value.shape,
            "values": value.astype(object).tolist(),
        }
        output.emit_json(document)
        return
    with np.printoptions(precision=4, linewidth=100, threshold=200):
        output.console().print(
            output.plain(f"{tensor.name} at step {step}: {tensor.dtype} {value.shape}")
        )
        click.echo(str(value))
