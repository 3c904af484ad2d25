"""What a notebook shows of the report of an engine."""

from __future__ import annotations

from pathlib import Path

import tdbg
from report_runs import Page, planted_run


def test_a_report_shows_findings_and_who_had_nothing_to_judge_by(
    tmp_path: Path,
) -> None:
    planted_run(tmp_path / "run", 200)
    report = tdbg.rules.check(
        tmp_path / "run", ["LossSpike", "TreeDepth"], record=False
    )
    page = Page(report._repr_html_())
    cells = {row.children[0].text: row.children[1].text for row in page.root.all("tr")}
    assert cells["do not apply"] == "TreeDepth"
    assert cells["judged"] == "200 recorded steps, up to step 199"
    assert cells["verdict"].startswith("● 1 problem occurred and recovered: LossSpike")
    assert "LossSpike" in page.root.text


def test_a_report_without_findings_says_that_nothing_was_found(tmp_path: Path) -> None:
    planted_run(tmp_path / "run", 60)
    report = tdbg.rules.check(tmp_path / "run", ["LossSpike"], record=False)
    assert report.healthy
    assert "1 rule found nothing wrong" in Page(report._repr_html_()).root.text
