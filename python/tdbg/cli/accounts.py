"""What every verb says about a run beside its own answer: verdict, losses and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click
from rich.console import Console

from tdbg.cli.output import EXIT_UNREADABLE, plain
from tdbg.modes import TRAINING
from tdbg.trial import FileProblem, LostRecords, Trial
from tdbg.view import RunView

__all__ = [
    "accounts",
    "exit_if_unread",
    "print_accounts",
    "print_lost_records",
    "state_text",
]

# So many problems are told; the rest is counted.
MOST_TOLD = 3


def accounts(trial: Trial, view: RunView) -> dict[str, Any]:
    """Return how a run is, what it lost and what capture cost, as JSON can hold it."""
    loss = view.loss
    return {
        "verdict": view.verdict.to_json(),
        "trained_steps": view.head.steps,
        "last_loss": None if loss is None else loss.to_json(),
        "lost_records": trial.lost_records().to_json(),
        "cost": trial.overhead().to_json(),
    }


def print_accounts(trial: Trial, view: RunView, out: Console) -> None:
    """Print the verdict on a run, what it lost and what capture cost."""
    out.print(plain(view.verdict.sentence))
    if view.loss is not None:
        at = f"{view.head.step_word} {view.loss.mode_step:,}"
        mode = "" if view.loss.mode in TRAINING else f" ({view.loss.mode.name})"
        text = f"last loss {view.loss.text} at {at}{mode}: {view.loss.name}"
        out.print(plain(text))
    print_lost_records(trial.lost_records(), out)
    out.print(plain(view.head.cost_text))


def print_lost_records(lost: LostRecords, out: Console) -> None:
    """Print what a run lost, if it did."""
    if lost:
        out.print(plain(str(lost)))


def state_text(state: str, lost: Mapping[str, Any]) -> str:
    """The state of a run: one that ended and lost something did not end in order."""
    return state if lost["in_order"] else f"{state}, with lost records"


def exit_if_unread(
    ctx: click.Context, problems: Iterable[FileProblem], code: int = 0
) -> None:
    """Exit with *code*, and tell what the system refused to read, if anything.

    That makes 0 the code of runs that cannot be read.
    """
    unread = [each for each in problems if each.kind == "io"]
    for each in unread[:MOST_TOLD]:
        file = "/".join(filter(None, ("w", each.writer, each.file)))
        click.echo(f"tdbg: could not be read: {file}: {each.message}", err=True)
    if len(unread) > MOST_TOLD:
        click.echo(f"tdbg: and {len(unread) - MOST_TOLD} more", err=True)
    if code or unread:
        ctx.exit(code or EXIT_UNREADABLE)
