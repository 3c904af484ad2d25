"""What every verb says about a run beside its own answer: verdict, losses and cost.

With ``--json`` it is ``RunView.to_json``.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.console import Console

from tdbg.cli.output import (
    EXIT_FAILED,
    EXIT_FOUND,
    EXIT_UNREADABLE,
    n_bytes,
    plain,
)
from tdbg.config.quantities import plural
from tdbg.modes import TRAINING
from tdbg.remote import Uploads
from tdbg.trial import FileProblem, LostRecords
from tdbg.view import Coverage, Diagnosis, RunView

__all__ = [
    "exit_code",
    "exit_if_unread",
    "print_accounts",
    "print_coverage",
    "print_lost_records",
    "state_text",
    "uploads_text",
]

# So many problems are told; the rest is counted.
MOST_TOLD = 3


def print_accounts(view: RunView, out: Console) -> None:
    """Print how a run is, how much of it was recorded and lost, and what it cost."""
    out.print(plain(view.verdict.sentence))
    if view.loss is not None:
        at = f"{view.head.step_word} {view.loss.step:,}"
        mode = "" if view.loss.mode in TRAINING else f" ({view.loss.mode.name})"
        text = f"last loss {view.loss.text} at {at}{mode}: {view.loss.name}"
        out.print(plain(text))
    print_coverage(view.head.coverage, out)
    print_lost_records(view.head.lost_records, out)
    out.print(plain(str(view.head.overhead)))


def print_coverage(coverage: Coverage, out: Console) -> None:
    """Print how much was recorded, and what to do to record more."""
    if coverage.text:
        advice = f". {coverage.advice}" if coverage.advice else ""
        out.print(plain(f"recorded: {coverage.text}{advice}"))


def print_lost_records(lost: LostRecords, out: Console) -> None:
    """Print what a run lost, if it did."""
    if lost:
        out.print(plain(str(lost)))


def state_text(state: str, in_order: bool) -> str:
    """Return the state of a run in words, and whether it lost records.

    Args:
        state: State of the training.
        in_order: Whether nothing was lost but what was left out on purpose.
    """
    return state if in_order else f"{state}, with lost records"


def uploads_text(uploads: Uploads) -> str:
    """Return how much of a run is in a store, and what it took, in words."""
    return (
        f"{plural(uploads.files, 'file')}, {n_bytes(uploads.bytes)}, "
        f"by {plural(uploads.requests, 'request')} ({uploads.failures:,} failed, "
        f"{uploads.retries:,} were repeated)"
    )


def exit_code(diagnosis: Diagnosis) -> int:
    """Return the exit code of a judgement: docs/cli.md, "Exit codes"."""
    if diagnosis.found_wrong:
        return EXIT_FOUND
    return EXIT_FAILED if diagnosis.failed else 0


def exit_if_unread(
    ctx: click.Context, problems: Iterable[FileProblem], code: int = 0
) -> None:
    """Exit with *code*, and tell what the system refused to read, if anything.

    That makes 0 the code of runs that cannot be read.
    """
    unread = [each for each in problems if each.kind == "io"]
    for each in unread[:MOST_TOLD]:
        file = "/".join(filter(None, ("w", each.writer, each.file)))
        click.echo(f"tdbg: could not read {file}: {each.message}", err=True)
    if len(unread) > MOST_TOLD:
        click.echo(f"tdbg: and {len(unread) - MOST_TOLD} more", err=True)
    if code or unread:
        ctx.exit(code or EXIT_UNREADABLE)
