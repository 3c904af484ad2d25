"""What every verb says of a run beside its own answer: what was lost, and the cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from tdbg.cli.output import plain
from tdbg.trial import RunLosses, create_trial

__all__ = ["accounts", "print_accounts", "print_losses", "state_text"]


def accounts(run: str) -> dict[str, Any]:
    """What the run lost, and what capture cost its training."""
    trial = create_trial(run)
    return {"losses": trial.losses().to_json(), "cost": trial.overhead().to_json()}


def print_accounts(run: str, out: Console) -> None:
    """Print the same."""
    trial = create_trial(run)
    print_losses(trial.losses(), out)
    out.print(plain(str(trial.overhead())))


def print_losses(losses: RunLosses, out: Console) -> None:
    """Print what a run lost, if it did."""
    if losses:
        out.print(plain(str(losses)))


def state_text(state: str, losses: Mapping[str, Any]) -> str:
    """The state of a run: one that ended and lost something did not end in order."""
    return state if losses["in_order"] else f"{state}, with losses"
