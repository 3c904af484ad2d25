"""Tables of what was named, what was made up, and which promises were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks._harness.tables import Table
from benchmarks.detection.scenarios.stage import Performance, Recorded
from tdbg.config.quantities import percent
from tdbg.run.findings import Finding

__all__ = ["Promise", "alarms", "by_scenario", "promises", "totals"]

#: How far a measured gain may be from the promised one, in points.
POINTS = 10.0


@dataclass(frozen=True, slots=True)
class Promise:
    """What an advice promised, and the runs before and after it was followed."""

    finding: Finding
    before: Recorded
    after: Recorded

    @property
    def promised(self) -> float:
        """The promised gain, in per cent of the time of a step."""
        return 100 * (self.finding.gain or 0.0)

    @property
    def measured(self) -> float:
        """The gain by the scenario's own clock."""
        return 100 * (
            1 - self.after.outcome["step_ms"] / self.before.outcome["step_ms"]
        )

    @property
    def is_kept(self) -> bool:
        return abs(self.promised - self.measured) <= POINTS


def by_scenario(found: Sequence[Performance]) -> Table:
    """A row for each fault."""
    shown = Table(
        "faults and what was named first",
        ("fault", "measured without tdbg", "named", "after", "symptoms", "wrong"),
        note="Measured: shares of the time by the scenario's own clock. After: seconds "
        "of training. Symptoms are listed under the cause.",
    )
    for each in found:
        recorded = each.recorded
        if not recorded.is_sick:
            continue
        shown.add(
            recorded.name,
            _measured(recorded),
            _rules(each.naming) or "-",
            "-" if each.seconds is None else f"{each.seconds:.0f} s",
            _rules(each.symptoms) or "-",
            _rules(each.wrong) or "-",
        )
    return shown


def totals(found: Sequence[Performance]) -> Table:
    """How many were named, wrong, or made up."""
    valid = [each for each in found if _is_valid(each.recorded)]
    sick = [each for each in valid if each.recorded.is_sick]
    well = [each for each in valid if not each.recorded.is_sick]
    shown = Table(
        "all scenarios",
        ("runs", "number", "cause named", "wrong cause or alarm", "busy machine named"),
    )
    for name, kind in (("with a fault", sick), ("healthy", well)):
        shown.add(
            name,
            len(kind),
            sum(bool(each.naming) for each in kind) if kind is sick else "-",
            sum(bool(each.wrong) for each in kind),
            sum(bool(each.crowded) for each in kind),
        )
    skipped = [each.recorded for each in found if not _is_valid(each.recorded)]
    shown.note = "; ".join(
        f"not counted: {each.name} ({each.trouble or 'the predicate did not hold'})"
        for each in skipped
    )
    return shown


def alarms(found: Sequence[Performance]) -> Table:
    """Warnings on healthy runs, and wrong causes on the others."""
    shown = Table("what was said without a reason", ("run", "rule", "message"))
    for each in found:
        for finding in each.wrong:
            shown.add(each.recorded.name, finding.rule, finding.message)
    return shown


def promises(kept: Sequence[Promise]) -> Table:
    """A row for each advice that was followed."""
    shown = Table(
        "gains, in the time of a step",
        ("fault", "rule", "step before", "after", "promised", "measured", "kept"),
    )
    for each in kept:
        if each.after.trouble:
            shown.note += f" {each.before.name}: {each.after.trouble}."
            continue
        shown.add(
            each.before.name,
            each.finding.rule,
            f"{each.before.outcome['step_ms']:.1f} ms",
            f"{each.after.outcome['step_ms']:.1f} ms",
            percent(each.promised),
            percent(each.measured),
            "yes" if each.is_kept else "NO",
        )
    return shown


def _is_valid(recorded: Recorded) -> bool:
    return not recorded.trouble and recorded.is_as_said


def _measured(recorded: Recorded) -> str:
    if recorded.trouble:
        return f"skipped: {recorded.trouble}"
    outcome = recorded.outcome
    figures = {
        **{name: percent(100 * share) for name, share in outcome["shares"].items()},
        **{name: f"{value:.4g}" for name, value in outcome["figures"].items()},
    }
    return ", ".join(f"{name} {text}" for name, text in figures.items()) or "-"


def _rules(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(each.rule for each in findings))
