"""The report of an engine in a notebook: what was found, and which rules ran."""

from __future__ import annotations

from tdbg.config.messages import counted
from tdbg.drawing.markup import Child, tag
from tdbg.drawing.snippet import facts, listing, snippet, toned
from tdbg.notebook.cells.findings import findings_table
from tdbg.rules import Report, RuleStatus, Status
from tdbg.view import diagnosis_of_report, verdict_of_rules

__all__ = ["report_html"]

MOST_RULES = 40


def report_html(report: Report) -> str:
    """The report as a snippet."""
    diagnosis = diagnosis_of_report(report)
    verdict = verdict_of_rules(diagnosis)
    rows: list[tuple[str, Child]] = [
        ("run", tag("code", report.run)),
        ("judged", f"{counted(report.n_steps, 'step')}, up to {report.last_step:,}"),
        ("verdict", toned(verdict.tone, verdict.sentence)),
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
        findings_table(diagnosis),
        listing(("rule", "status", "findings", "message"), ran) if ran else None,
    )


def _had_nothing(status: RuleStatus) -> bool:
    return status.status is Status.NO_ISSUES_FOUND and bool(status.message)
