"""How actions are asked for on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import click

from tdbg.actions import (
    Action,
    ActionSpec,
    Gate,
    Stop,
    make,
    names,
    parse,
    read_specs,
)
from tdbg.findings import Finding, Severity

__all__ = [
    "GONE",
    "STOPPING",
    "action_options",
    "asked_to_stop",
    "parse_actions",
    "parse_specs",
]

# States of a run whose training asks no more what is wanted of it.
GONE = ("closed", "dead")
STOPPING = "asked the training to stop"


def action_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb ``--on-finding``, ``--stop-on``, ``--actions`` and ``--dry-run``."""
    for option in (
        click.option(
            "--dry-run",
            is_flag=True,
            help="Only say which actions would be taken.",
        ),
        click.option(
            "--actions",
            "file",
            type=click.Path(exists=True, dir_okay=False),
            help="A YAML or JSON file of actions: docs/actions.md.",
        ),
        click.option(
            "--stop-on",
            type=click.Choice([severity.label for severity in Severity]),
            default="error",
            show_default=True,
            help="Severity from which on 'stop' stops.",
        ),
        click.option(
            "--on-finding",
            multiple=True,
            metavar="ACTION",
            help=f"What to do about findings: {', '.join(names())}, some with what "
            "they are to act upon, as 'webhook:https://...'; repeatable.",
        ),
    ):
        command = option(command)
    return command


def parse_actions(
    run: str,
    on_finding: Sequence[str],
    stop_on: str,
    file: str | None,
    *,
    dry_run: bool,
    checks_only: bool = False,
) -> tuple[Action, ...]:
    """Make the actions that the command line asks for; or see that they can be made.

    Raises:
        ConfigurationError: If one is unknown, or cannot be made.
    """
    specs = parse_specs(on_finding, stop_on, file, dry_run=dry_run)
    return tuple(make(spec, run, checks_only=checks_only) for spec in specs)


def asked_to_stop(actions: Sequence[Action]) -> Finding | None:
    """The finding for which a training was asked to stop; None: it was not."""
    for action in actions:
        inner = action.action if isinstance(action, Gate) else action
        if isinstance(inner, Stop) and inner.requested is not None:
            return inner.requested
    return None


def parse_specs(
    on_finding: Sequence[str], stop_on: str, file: str | None, *, dry_run: bool
) -> tuple[ActionSpec, ...]:
    """What the command line asks for; an action is made of each for a run.

    Raises:
        ConfigurationError: If one is unknown.
    """
    specs: list[ActionSpec] = []
    for text in on_finding:
        spec = parse(text)
        if spec.name == "stop":
            spec = dataclasses.replace(spec, severity=Severity.of(stop_on))
        specs.append(spec)
    if file is not None:
        specs += read_specs(file)
    if dry_run:
        specs = [dataclasses.replace(spec, dry_run=True) for spec in specs]
    return tuple(specs)
