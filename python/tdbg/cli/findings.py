"""How findings and statuses are printed, and how rules are asked for."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tdbg.cli.output import SEVERITY_STYLES, plain, table
from tdbg.errors import ConfigurationError
from tdbg.rules import Rule, default_rules, make

__all__ = ["parse_rules", "print_finding", "print_statuses", "rule_option"]

rule_option = click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="NAME",
    help="A rule, or 'NAME(parameter=value)'; repeatable.  Default: all.",
)


def parse_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """Make the rules that the command line names; none named: the default ones.

    Raises:
        ConfigurationError: If a text is not NAME or NAME(parameter=literal, ...), or
            the rule or a parameter is unknown or out of range.
    """
    return tuple(_parse(text) for text in texts) or default_rules()


def _parse(text: str) -> Rule:
    try:
        expression = ast.parse(text, mode="eval").body
        if isinstance(expression, ast.Name):
            return make(expression.id)
        if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
            if expression.args:
                raise SyntaxError
            parameters = {
                str(keyword.arg): ast.literal_eval(keyword.value)
                for keyword in expression.keywords
            }
            return make(expression.func.id, **parameters)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
    msg = f"rule {text!r}: write NAME or 'NAME(parameter=value, ...)'"
    raise ConfigurationError(msg)


def print_finding(finding: Mapping[str, Any], out: Console) -> None:
    """Print one finding, as its JSON document: what, where, how far, what to do."""
    style = SEVERITY_STYLES.get(finding["severity"], "")
    head = Text()
    gone = " (gone)" if finding.get("phase") == "end" else ""
    head.append(f"{finding['severity']}{gone}", style=style)
    head.append(f"  {finding['rule']} at step {finding['step']}: ", style="bold")
    head.append_text(plain(f"{finding['tensor']}: {finding['message']}"))
    out.print(head)
    if finding.get("advice") and not gone:
        out.print(Text("    -> ").append_text(plain(finding["advice"])), style="dim")


def print_statuses(statuses: Sequence[Mapping[str, Any]], out: Console) -> None:
    """Print how each rule has ended, a line each."""
    result = table("rule", "status", "findings", right=("findings",))
    for status in statuses:
        name = plain(f"{status['status']}  {status['message']}".strip())
        result.add_row(plain(status["rule"]), name, str(status["n_findings"]))
    out.print(result)
