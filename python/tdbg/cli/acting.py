"""How actions are asked for on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import click

from tdbg import rules
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
from tdbg.rules import Rule
from tdbg.settings.place import Place

__all__ = [
    "ENDS",
    "GONE",
    "STOPPING",
    "action_options",
    "asked_to_stop",
    "parse_actions",
    "parse_specs",
]

# States of a run whose training asks no more what is wanted of it.
GONE = ("closed", "dead")
# What has become of a training, by the state of its run.
ENDS = {
    "closed": "has ended",
    "dead": "is gone, and did not close its run: it was killed, or has crashed",
    "running": "goes on",
    "stalled": "goes on, but has given no sign of life for 10 s",
}
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
    judging: Sequence[Rule],
    dry_run: bool,
    checks_only: bool = False,
) -> tuple[Action, ...]:
    """Make the actions that the command line asks for; or see that they can be made.

    Raises:
        ConfigurationError: If one is unknown, or cannot be made.
    """
    specs = parse_specs(on_finding, stop_on, file, judging=judging, dry_run=dry_run)
    return tuple(make(spec, run, checks_only=checks_only) for spec in specs)


def asked_to_stop(actions: Sequence[Action]) -> Finding | None:
    """The finding for which a training was asked to stop; None: it was not."""
    for action in actions:
        inner = action.action if isinstance(action, Gate) else action
        if isinstance(inner, Stop) and inner.requested is not None:
            return inner.requested
    return None


def parse_specs(
    on_finding: Sequence[str],
    stop_on: str,
    file: str | None,
    *,
    judging: Sequence[Rule],
    dry_run: bool,
) -> tuple[ActionSpec, ...]:
    """What the command line asks for; an action is made of each for a run.

    Args:
        on_finding: Actions, as ``NAME`` or ``NAME:TARGET``.
        stop_on: Severity from which on "stop" stops.
        file: A file of further actions.
        judging: The rules, which may have names that no registry knows.
        dry_run: Whether all actions only say what they would do.

    Raises:
        ConfigurationError: If one is unknown, or for a rule that there is not: it
            would wait for ever.
    """
    specs: list[ActionSpec] = []
    for text in on_finding:
        spec = parse(text)
        if spec.name == "stop":
            spec = dataclasses.replace(spec, severity=Severity.of(stop_on))
        specs.append(spec)
    if file is not None:
        names = {rule.name for rule in judging}
        specs += (
            _of_rules(spec, names, i, file) for i, spec in enumerate(read_specs(file))
        )
    if dry_run:
        specs = [dataclasses.replace(spec, dry_run=True) for spec in specs]
    return tuple(specs)


def _of_rules(
    spec: ActionSpec, judging: Collection[str], index: int, file: str
) -> ActionSpec:
    """The action with names of rules as findings have them, which must exist."""
    if spec.rules is None:
        return spec
    with Place(file).key("actions").item(index).inside():
        names = (
            name if name in judging else rules.get(name).__name__ for name in spec.rules
        )
        return dataclasses.replace(spec, rules=frozenset(names))
