"""Options for rules and actions, and how verbs print findings and statuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

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
from tdbg.cli.output import SEVERITY_STYLES, plain, table
from tdbg.config.documents import Location
from tdbg.rules import Rule, Status, parse_rules
from tdbg.run.findings import Finding, Severity

__all__ = [
    "ENDS",
    "GONE",
    "STOPPING",
    "action_options",
    "asked_to_stop",
    "parse_actions",
    "parse_rules",
    "parse_specs",
    "print_findings",
    "print_statuses",
    "rule_option",
]


# States of a run whose training no longer reads requests.
GONE = ("closed", "dead")
# How a training stands, by the state of its run.
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
            help="The least severity at which 'stop' stops.",
        ),
        click.option(
            "--on-finding",
            multiple=True,
            metavar="ACTION",
            help=f"What to do about findings: {', '.join(names())}, some with a "
            "target, as 'webhook:https://...'; repeatable.",
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
    """Make the actions of the command line, or only check that they can be made.

    Raises:
        ConfigurationError: If an action is unknown, or cannot be made.
    """
    specs = parse_specs(on_finding, stop_on, file, judging=judging, dry_run=dry_run)
    return tuple(make(spec, run, checks_only=checks_only) for spec in specs)


def asked_to_stop(actions: Sequence[Action]) -> Finding | None:
    """The finding for which a stop was requested, or None."""
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
    """The actions that the command line names; each is made anew for every run.

    Args:
        on_finding: Actions, as ``NAME`` or ``NAME:TARGET``.
        stop_on: The least severity at which "stop" stops.
        file: A file of further actions.
        judging: The rules; the registry need not know their names.
        dry_run: Whether actions only log what they would do.

    Raises:
        ConfigurationError: If an action is unknown, or is for a rule that does not
            judge, so that the action could never act.
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
    """Replace the names of the action's rules by those that findings have."""
    if spec.rules is None:
        return spec
    with Location(file).key("actions").item(index).inside():
        names = (
            name if name in judging else rules.get(name).__name__ for name in spec.rules
        )
        return dataclasses.replace(spec, rules=frozenset(names))


QUIET = Status.NO_ISSUES_FOUND.value
# These statuses need no line of their own, unless there is a message.
SILENT = (QUIET, Status.STOPPED.value)
BLIND = f"{QUIET}, and nothing or not all to judge by"

rule_option = click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="NAME",
    help="A rule, 'NAME(parameter=value)' or FILE.py:CLASS; repeatable.  Default: all "
    "of tdbg's.",
)


def print_findings(findings: Sequence[Mapping[str, Any]], out: Console) -> None:
    """Print findings, given as JSON documents.

    Findings of one rule, step and severity are one problem in several tensors: the
    first one, which is the worst or the first in execution order, is printed in full,
    the others by name.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for finding in findings:
        kind = (finding["rule"], finding["severity"], finding.get("phase"))
        groups.setdefault((*kind, finding["step"]), []).append(finding)
    for group in groups.values():
        _print_group(group, out)


def _print_group(group: Sequence[Mapping[str, Any]], out: Console) -> None:
    first = group[0]
    style = SEVERITY_STYLES.get(first["severity"], "")
    gone = " (gone)" if first.get("phase") == "end" else ""
    text = Text()
    text.append(f"{first['severity']}{gone}", style=style)
    # Only findings outside of training name their mode.
    mode = first.get("mode", "TRAIN")
    of = "" if mode in ("TRAIN", "GLOBAL") else f" ({mode})"
    text.append(f"  {first['rule']} at step {first['step']}{of}: ", style="bold")
    text.append_text(plain(f"{first['tensor']}: {first['message']}"))
    out.print(text)
    if len(group) > 1:
        names = ", ".join(finding["tensor"] for finding in group[1:])
        out.print(plain(f"    and {len(group) - 1} more: {names}"), style="dim")
    if first.get("advice") and not gone:
        out.print(plain(f"    -> {first['advice']}"))


def print_statuses(
    statuses: Sequence[Mapping[str, Any]], out: Console, *, named: bool
) -> None:
    """Print how each rule ended: a line each, and one line for all without a message.

    Args:
        statuses: The statuses as JSON documents.
        out: The console.
        named: Whether the user named the rules.  If not, rules that lacked data share
            one line.
    """
    idle = [s for s in statuses if s["status"] in SILENT and not s["message"]]
    idle = [s for s in idle if not s["n_findings"]]
    blind = [s for s in statuses if s["status"] == QUIET and s["message"]]
    if named:
        blind = []
    listed = [status for status in statuses if status not in idle + blind]
    # Errors first, then findings, then rules that lacked data.
    listed.sort(key=lambda s: (s["status"] != Status.ERROR.value, not s["n_findings"]))
    rows = [
        (
            status["rule"],
            str(status["n_findings"] or "-"),
            f"{status['status']}  {status['message']}".strip(),
        )
        for status in listed
    ]
    if rows:
        out.print(table(("rule", "findings", "status"), rows, right=("findings",)))
    for name in SILENT:
        rules = ", ".join(s["rule"] for s in idle if s["status"] == name)
        if rules:
            out.print(plain(f"{name}: {rules}"))
    if blind:
        rules = ", ".join(status["rule"] for status in blind)
        out.print(plain(f"{BLIND}: {rules}"), style="dim")
        out.print(plain("    --rule NAME says what is missing"), style="dim")
