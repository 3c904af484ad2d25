"""What every verb says of a run beside its own answer: what was lost, and the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click
from rich.console import Console

from tdbg.cli.output import EXIT_UNREADABLE, plain
from tdbg.trial import LostRecords, Problem, create_trial

__all__ = [
    "accounts",
    "exit_if_unread",
    "print_accounts",
    "print_lost_records",
    "state_text",
]

# So many problems are told; the rest is counted.
MOST_TOLD = 3


def accounts(run: str) -> dict[str, Any]:
    """What the run lost, and what capture cost its training."""
    trial = create_trial(run)
    return {
        "lost_records": trial.lost_records().to_json(),
        "cost": trial.overhead().to_json(),
    }


def print_accounts(run: str, out: Console) -> None:
    """Print the same."""
    trial = create_trial(run)
    print_lost_records(trial.lost_records(), out)
    out.print(plain(str(trial.overhead())))


def print_lost_records(lost: LostRecords, out: Console) -> None:
    """Print what a run lost, if it did."""
    if lost:
        out.print(plain(str(lost)))


def state_text(state: str, lost: Mapping[str, Any]) -> str:
    """The state of a run: one that ended and lost something did not end in order."""
    return state if lost["in_order"] else f"{state}, with lost records"


def exit_if_unread(
    ctx: click.Context, problems: Iterable[Problem], code: int = 0
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
