"""How findings and statuses are printed, and how rules are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tdbg.cli.output import SEVERITY_STYLES, plain, table
from tdbg.rules.asking import parse_rules

__all__ = ["parse_rules", "print_findings", "print_statuses", "rule_option"]

rule_option = click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="NAME",
    help="A rule, 'NAME(parameter=value)' or FILE.py:CLASS; repeatable.  Default: all "
    "of tdbg's.",
)


def print_findings(findings: Sequence[Mapping[str, Any]], out: Console) -> None:
    """Print findings, as their JSON documents: what, where, how far, what to do.

    Those of one rule, step and severity are one problem seen in several tensors: the
    first, which rules put worst or first in execution order, is told in full and the
    others by name.
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
    text.append(f"  {first['rule']} at step {first['step']}: ", style="bold")
    text.append_text(plain(f"{first['tensor']}: {first['message']}"))
    out.print(text)
    if len(group) > 1:
        names = ", ".join(finding["tensor"] for finding in group[1:])
        out.print(plain(f"    and {len(group) - 1} more: {names}"), style="dim")
    if first.get("advice") and not gone:
        out.print(plain(f"    -> {first['advice']}"))


def print_statuses(statuses: Sequence[Mapping[str, Any]], out: Console) -> None:
    """Print how each rule has ended, a line each."""
    rows = [
        (
            status["rule"],
            f"{status['status']}  {status['message']}".strip(),
            str(status["n_findings"]),
        )
        for status in statuses
    ]
    out.print(table(("rule", "status", "findings"), rows, right=("findings",)))
