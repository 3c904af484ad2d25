"""Findings and reports in a notebook: what is wrong, where, and what to do.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from tdbg.config.quantities import plural
from tdbg.drawing.markup import Child, join, tag
from tdbg.drawing.snippet import facts, listing, snippet, toned
from tdbg.rules import Report, Status
from tdbg.run.findings import Finding
from tdbg.view import Diagnosis, diagnosis_of_report, verdict_of_rules

__all__ = ["finding_html", "findings_table", "report_html"]

MOST_LISTED = 12
MOST_RULES = 40


def finding_html(finding: Finding) -> str:
    """All that a finding says."""
    rows: list[tuple[str, Child]] = [
        ("where", tag("code", finding.tensor)),
        ("when", f"{_steps(finding)} ({finding.mode.name})"),
        ("what", finding.message),
    ]
    if finding.advice:
        rows.append(("what to do", finding.advice))
    if finding.cause is not None:
        cause = finding.cause
        rows.append(("follows from", [cause.rule, " in ", tag("code", cause.tensor)]))
    return snippet([_severity(finding), f" {finding.rule}"], facts(rows))


def findings_table(diagnosis: Diagnosis, most: int = MOST_LISTED) -> Child:
    """A table of the first *most* problems, a row for each, causes first."""
    problems = diagnosis.problems
    if not problems:
        return None
    table = listing(
        ("", "rule", "tensor", "when", "what is wrong", "what to do"),
        (
            (
                _severity(each.worst),
                each.rule,
                tag("code", each.place),
                _steps(each.worst),
                each.worst.message,
                each.worst.advice,
            )
            for each in problems[:most]
        ),
    )
    more = len(problems) - most
    if more <= 0:
        return table
    return join([table, tag("p", f"and {plural(more, 'more problem')}")])


def _severity(finding: Finding) -> Child:
    if finding.is_over:
        return toned("ok", f"{finding.severity.label}, gone")
    return toned(finding.severity.label, finding.severity.label)


def _steps(finding: Finding) -> str:
    if finding.first_step == finding.last_step:
        return f"step {finding.first_step:,}"
    return f"steps {finding.first_step:,} to {finding.last_step:,}"


def report_html(report: Report) -> str:
    """The report as a snippet."""
    diagnosis = diagnosis_of_report(report)
    verdict = verdict_of_rules(diagnosis)
    rows: list[tuple[str, Child]] = [
        ("run", tag("code", report.run)),
        ("judged", f"{report.judged}, up to step {report.last_step:,}"),
        ("verdict", toned(verdict.tone, verdict.sentence)),
        ("rules", str(len(report.statuses))),
    ]
    rows += [("note", note) for note in report.notes[:MOST_RULES]]
    if diagnosis.blind:
        rows.append(("had nothing to judge by", ", ".join(diagnosis.blind)))
    if diagnosis.inapplicable:
        rows.append(("do not apply", ", ".join(diagnosis.inapplicable)))
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
