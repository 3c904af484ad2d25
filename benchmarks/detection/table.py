"""What came of it: found, in time, false alarms; by half, collection and rule.

The same tables go to the terminal and into README.md, between its markers.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks._harness.tables import Table
from benchmarks.detection.judge import Judged
from benchmarks.detection.kit.case import HALVES, ORIGINS
from tdbg.run.findings import Severity

__all__ = [
    "by_half",
    "by_origin",
    "by_rule",
    "false_alarms",
    "missed",
    "tables",
    "write",
]

#: Of a row of a table.
WIDTH = 118
BEGIN, END = "<!-- {} begin -->", "<!-- {} end -->"


def tables(judged: Sequence[Judged]) -> list[Table]:
    """All of them."""
    several = len({one.origin for one in judged}) > 1
    return [
        by_half(judged),
        *([by_origin(judged)] if several else []),
        by_rule(judged),
        missed(judged),
        false_alarms(judged),
    ]


def by_half(judged: Sequence[Judged]) -> Table:
    """Recall and false alarms of both halves, and of all."""
    parts = {half: [one for one in judged if one.half == half] for half in HALVES}
    return _of_parts("both halves", "half", parts | {"all": list(judged)})


def by_origin(judged: Sequence[Judged]) -> Table:
    """Likewise of each collection that the cases were written for."""
    parts = {
        origin: here
        for origin in ORIGINS
        if (here := [one for one in judged if one.origin == origin])
    }
    return _of_parts("each collection", "collection", parts)


def _of_parts(
    title: str, first_column: str, parts: Mapping[str, Sequence[Judged]]
) -> Table:
    table = Table(
        title,
        (
            first_column,
            "sick runs",
            "found",
            "in time",
            "delay: median, longest",
            "healthy runs",
            "with an error",
            "with a warning",
        ),
        note="Delay in training steps from the one at which the fault is visible to "
        "the first finding that names it; negative: found before. A healthy run counts "
        "once, however many findings it has.",
    )
    for name, here in parts.items():
        sick = [one for one in here if one.is_sick]
        well = [one for one in here if not one.is_sick]
        table.add(
            name,
            len(sick),
            share(one.found is not None for one in sick),
            share(one.in_time for one in sick),
            delays(sick),
            len(well),
            count(bool(one.alarms(Severity.ERROR)) for one in well),
            count(bool(one.alarms(Severity.WARNING)) for one in well),
        )
    return table


def by_rule(judged: Sequence[Judged]) -> Table:
    """Of each rule: what it found by itself of the runs that it may name."""
    table = Table(
        "each rule by itself",
        (
            "rule",
            "half",
            "runs it may name",
            "named",
            "in time",
            "delay: median, longest",
            "healthy: error",
            "warning",
        ),
        note="Most faults may be named by several rules, of which one is enough.",
    )
    rules = {rule for one in judged for rule in one.named_by}
    rules |= {named.rule for one in judged for named in one.findings}
    for rule in sorted(rules):
        for half in HALVES:
            here = [one for one in judged if one.half == half]
            sick = [one for one in here if rule in one.named_by]
            alone = [one.first_of([rule]) for one in sick]
            late = [
                named.step - one.visible_at
                for named, one in zip(alone, sick, strict=True)
                if named is not None and one.visible_at is not None
            ]
            well = [one for one in here if not one.is_sick]
            table.add(
                rule if half == HALVES[0] else "",
                half,
                len(sick),
                share(named is not None for named in alone),
                fraction(sum(delay <= 0 for delay in late), len(sick)),
                spread(late),
                count(_has(one, rule, Severity.ERROR) for one in well),
                count(_has(one, rule, Severity.WARNING) for one in well),
            )
    return table


def missed(judged: Sequence[Judged]) -> Table:
    """Sick cases that were not found, or late, with at least one seed."""
    table = Table(
        "missed, or late",
        (
            "case",
            "half",
            "seeds",
            "visible",
            "delays",
            "was named by",
        ),
        note="Delays by seed; -: not found.",
    )
    for name, runs in _by_case(one for one in judged if one.is_sick).items():
        if all(one.in_time for one in runs):
            continue
        others = sorted({n.rule for one in runs for n in one.findings})
        cells = (
            name,
            runs[0].half,
            str(len(runs)),
            " ".join(_text(one.visible_at) for one in runs),
            " ".join(_text(one.delay) for one in runs),
        )
        table.add(*cells, _as_many_as_fit(others, _room(cells)) or "nothing")
    return table


def false_alarms(judged: Sequence[Judged]) -> Table:
    """Healthy cases about which something was said."""
    table = Table(
        "false alarms",
        ("case", "half", "severity", "rule", "seeds", "first at step", "says"),
    )
    for name, runs in _by_case(one for one in judged if not one.is_sick).items():
        said = defaultdict(list)
        for one in runs:
            for named in one.findings:
                if named.severity >= Severity.WARNING:
                    said[named.severity, named.rule].append(named)
        for (severity, rule), all_of in sorted(said.items(), reverse=True):
            first = min(all_of, key=lambda named: named.step)
            seeds = f"{len(all_of)} of {len(runs)}"
            cells = (name, runs[0].half, severity.label, rule, seeds, str(first.step))
            says = textwrap.shorten(first.message, _room(cells), placeholder=" ...")
            table.add(*cells, says.replace("|", "\\|"))
    return table


def write(path: Path, tables: Iterable[Table], what: str = "tables") -> None:
    """Put tables between the markers of a page.

    Args:
        path: The page.
        tables: They.
        what: The name in the markers.

    Raises:
        ValueError: If the page has no markers.
    """
    page = path.read_text(encoding="utf-8")
    begin, end = BEGIN.format(what), END.format(what)
    if begin not in page or end not in page:
        msg = f"{path} has no {begin} and {end}"
        raise ValueError(msg)
    before, rest = page.split(begin, 1)
    _, after = rest.split(end, 1)
    written = "\n".join(table.markdown() for table in tables).split("\n")
    body = "\n".join(
        line if line.startswith("|") else textwrap.fill(line, WIDTH) for line in written
    )
    path.write_text(f"{before}{begin}\n\n{body}\n{end}{after}", encoding="utf-8")


def share(holds: Iterable[bool]) -> str:
    """How many of them hold, of how many."""
    every = list(holds)
    return fraction(sum(every), len(every))


def fraction(part: int, whole: int) -> str:
    """A part of a whole, in per cent too."""
    return f"{part} ({part / whole:.0%})" if whole else "-"


def count(holds: Iterable[bool]) -> int:
    """How many of them hold."""
    return sum(holds)


def delays(judged: Iterable[Judged]) -> str:
    """Median and longest delay of those that were found."""
    return spread([one.delay for one in judged if one.delay is not None])


def spread(numbers: Sequence[int]) -> str:
    """Median and largest."""
    return f"{median(numbers):g}, {max(numbers)}" if numbers else "-"


def _room(cells: Sequence[str]) -> int:
    """How wide one more cell may be, so that the row can be read."""
    return max(WIDTH - len(" | ".join(["", *cells, "", ""])), 20)


def _as_many_as_fit(parts: Sequence[str], room: int) -> str:
    """A list that ends in how many more there are."""
    for n in range(len(parts), 1, -1):
        more = f" and {len(parts) - n} more" if n < len(parts) else ""
        text = ", ".join(parts[:n]) + more
        if len(text) <= room:
            return text
    return ", ".join(parts[:1]) + (f" and {len(parts) - 1} more" if parts[1:] else "")


def _by_case(judged: Iterable[Judged]) -> dict[str, list[Judged]]:
    grouped: dict[str, list[Judged]] = {}
    for one in judged:
        grouped.setdefault(one.case, []).append(one)
    return grouped


def _has(judged: Judged, rule: str, severity: Severity) -> bool:
    return any(one.rule == rule for one in judged.alarms(severity))


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)
