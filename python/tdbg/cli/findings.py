"""How findings and statuses are printed, and how rules are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tdbg.cli.output import SEVERITY_STYLES, plain, table
from tdbg.rules import Status
from tdbg.rules.asking import parse_rules

__all__ = ["parse_rules", "print_findings", "print_statuses", "rule_option"]

QUIET = Status.NO_ISSUES_FOUND.value
# Of these nothing more is to be told, unless there is a message.
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
    # Most is found in training; what is not says so.
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
    """Print how each rule has ended: a line each, and one for all without a word.

    Args:
        statuses: As their JSON documents.
        out: Where to.
        named: Whether these rules were asked for by name.  Otherwise those that had
            nothing to judge by, or not all, are a line together.
    """
    quiet = [s for s in statuses if s["status"] in SILENT and not s["message"]]
    quiet = [s for s in quiet if not s["n_findings"]]
    blind = [s for s in statuses if s["status"] == QUIET and s["message"]]
    if named:
        blind = []
    told = [status for status in statuses if status not in quiet + blind]
    # What failed, what was found, and what there was nothing to find by.
    told.sort(key=lambda s: (s["status"] != Status.ERROR.value, not s["n_findings"]))
    rows = [
        (
            status["rule"],
            str(status["n_findings"] or "-"),
            f"{status['status']}  {status['message']}".strip(),
        )
        for status in told
    ]
    if rows:
        out.print(table(("rule", "findings", "status"), rows, right=("findings",)))
    for name in SILENT:
        rules = ", ".join(s["rule"] for s in quiet if s["status"] == name)
        if rules:
            out.print(plain(f"{name}: {rules}"))
    if blind:
        rules = ", ".join(status["rule"] for status in blind)
        out.print(plain(f"{BLIND}: {rules}"), style="dim")
        out.print(plain("    --rule NAME says what is missing"), style="dim")
