"""The report of an engine in a notebook: what was found, and which rules ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.config.messages import counted
from tdbg.drawing.markup import Child, tag
from tdbg.drawing.snippet import facts, listing, snippet, toned
from tdbg.rules.runner import RuleStatus, Status
from tdbg.run.findings_html import findings_table

if TYPE_CHECKING:
    from tdbg.rules.engine.engine import Report

__all__ = ["report_html"]

MOST_RULES = 40


def report_html(report: Report) -> str:
    """The report as a snippet."""
    n = len(report.findings)
    active = [each.severity for each in report.findings if not each.is_over]
    if not n:
        words = toned("ok" if report.healthy else "warning", "nothing found")
    elif active:
        words = toned(max(active).label, counted(n, "finding"))
    else:
        words = toned("ok", f"{counted(n, 'finding')}, all over")
    rows: list[tuple[str, Child]] = [
        ("run", tag("code", report.run)),
        ("judged", f"{counted(report.n_steps, 'step')}, up to {report.last_step:,}"),
        ("findings", words),
        ("rules", str(len(report.statuses))),
    ]
    rows += [("note", note) for note in report.notes[:MOST_RULES]]
    silent = [each.rule for each in report.statuses if _had_nothing(each)]
    if silent:
        rows.append(("had nothing to judge by", ", ".join(silent)))
    ran = [
        (each.rule, each.status.value, str(each.n_findings), each.message)
        for each in report.statuses[:MOST_RULES]
        if each.n_findings or each.status is Status.ERROR
    ]
    return snippet(
        "Report of the rules",
        facts(rows),
        findings_table(report.findings),
        listing(("rule", "status", "findings", "message"), ran) if ran else None,
    )


def _had_nothing(status: RuleStatus) -> bool:
    return status.status is Status.NO_ISSUES_FOUND and bool(status.message)
