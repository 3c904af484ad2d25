"""The screens of ``tdbg top``: the runs, and one run.

Each is a list of lines of text that fits the terminal, made from what is known.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from tdbg.cli.output import SEVERITY_STYLES, plain, shortened
from tdbg.cli.top.board import WatchedRun, folder_of
from tdbg.cli.top.charts import (
    NAME_WIDTH,
    beside,
    clipped,
    depth_chart,
    layer_map,
    loss_chart,
    sparkline,
    time_bar,
)
from tdbg.config.quantities import plural
from tdbg.run.findings import Finding, Severity
from tdbg.trial import Envelope
from tdbg.view.time import Line, percent_text

__all__ = ["KEYS", "View", "draw"]

#: What each key does, as the screen of keys says it.
KEYS = {
    "up, down, k, j": "choose a run, or a finding in an open run",
    "enter, escape": "open the run; go back to the list of runs",
    "tab": "show another collection in the map",
    "+, -": "zoom in to the newer half of the steps; zoom out",
    "c": "check the run with the default rules",
    "s": "stop the training, once you confirm",
    "a": "capture values of the map's tensors for 50 steps, once you confirm",
    "?": "show these keys",
    "q": "quit; trainings continue",
}
_SYMBOLS = {Severity.ERROR: "■", Severity.WARNING: "▲", Severity.INFO: "●"}
_STATE_STYLES = {
    "running": "green",
    "stalled": "yellow",
    "dead": "bold red",
    "unreadable": "bold red",
}
_LOSS_ROWS = 4
_ADVICE_ROWS = 2
_VERDICT_ROWS = 3
_PYTHON_ROWS = 4
_FLOW_WIDTH = 40
_WIDTH_WITH_FLOW = 110


@dataclass(slots=True)
class View:
    """What the user has chosen.

    Attributes:
        selected: Number of the run under the cursor.
        is_open: Whether that run is open.
        finding: Number of the finding whose advice is shown.
        collection: Number of the collection in the map.
        zoom: How often the newer half of the steps was chosen.
        question: What the user is asked, to be answered by y.
        message: What was done last.
        shows_keys: Whether the keys are shown.
    """

    selected: int = 0
    is_open: bool = False
    finding: int = 0
    collection: int = 0
    zoom: int = 0
    question: str = ""
    message: str = ""
    shows_keys: bool = False


def draw(runs: Sequence[WatchedRun], view: View, width: int, height: int) -> Text:
    """The screen, of at most so many lines and characters.

    Args:
        runs: The runs, at least one.
        view: What the user has chosen.
        width: Characters of a line.
        height: Lines.
    """
    body = height - 1
    if view.shows_keys:
        lines = [Text(f"{keys:<16} {what}") for keys, what in KEYS.items()]
    elif view.is_open:
        lines = _run_screen(runs[view.selected], view, width, body)
    else:
        lines = _runs_screen(runs, view, width, body)
    lines = lines[:body]
    lines += [Text()] * (body - len(lines))
    lines = [clipped(line, width) for line in (*lines, _footer(view))]
    screen = Text("\n").join(lines)
    screen.no_wrap = True
    return screen


def _footer(view: View) -> Text:
    if view.question:
        return Text(f"{view.question} [y/n]", "bold yellow")
    if view.message:
        return plain(view.message)
    shown = "q quit  ? keys  c check  s stop  a capture"
    more = "  tab map  +/- zoom  esc runs" if view.is_open else "  enter open"
    return Text(shown + more, "dim")


# ---- the runs --------------------------------------------------------------------


def _runs_screen(
    runs: Sequence[WatchedRun], view: View, width: int, height: int
) -> list[Text]:
    folder = folder_of(runs)
    n_running = sum(run.state == "running" for run in runs)
    head = f"{plural(len(runs), 'run')}, {n_running} running"
    lines = [plain(f"{head}  {folder}".rstrip()), Text()]
    lines[0].stylize("bold")
    room = max(1, height - len(lines))
    first = max(0, min(view.selected - room // 2, len(runs) - room))
    lines += [
        _run_line(run, folder, width, is_selected=i == view.selected)
        for i, run in enumerate(runs[first : first + room], first)
    ]
    return lines


def _run_line(run: WatchedRun, folder: str, width: int, *, is_selected: bool) -> Text:
    line = Text("> " if is_selected else "  ", "bold")
    name = shortened(plain(run.name.removeprefix(folder)).plain, NAME_WIDTH)
    line.append(name + " " * (NAME_WIDTH + 1 - cell_len(name)), "bold")
    line.append(f"{run.state:<11}", _STATE_STYLES.get(run.state, ""))
    if run.error:
        line.append_text(plain(run.error))
        return clipped(line, width)
    line.append(f"{run.n_steps:>8,}  ")
    spark = 12 if width < 100 else 24
    losses = run.losses(2 * spark)
    if losses:
        drawn = sparkline(losses[0])
        loss = None if run.view is None else run.view.loss
        line.append(f"{'' if loss is None else loss.text:>10}  ")
        line.append_text(drawn)
        line.append(" " * (spark + 2 - cell_len(drawn.plain)))
    else:
        line.append(" " * (spark + 14))
    for severity in (Severity.ERROR, Severity.WARNING, Severity.INFO):
        n = run.n_problems(severity)
        if n:
            line.append(f"{_SYMBOLS[severity]} {n} ", SEVERITY_STYLES[severity.label])
    line.append_text(plain(_in_short(run)))
    return clipped(line, width)


def _in_short(run: WatchedRun) -> str:
    """The worst problem, or what else is to be said of a run that is not fine."""
    if run.view is None:
        return ""
    diagnosis = run.view.diagnosis
    first = next(iter((*diagnosis.at_fault, *diagnosis.notes)), None)
    if first is not None:
        return f"{first.rule} {first.worst.tensor}"
    return f"{diagnosis.failed[0]} failed" if diagnosis.failed else ""


# ---- one run ---------------------------------------------------------------------


def _run_screen(run: WatchedRun, view: View, width: int, height: int) -> list[Text]:
    title = Text(shortened(plain(run.name).plain, max(12, width // 2)) + "  ")
    title.stylize("bold")
    title.append(run.state, _STATE_STYLES.get(run.state, ""))
    if run.view is not None:
        title.append(f"  {run.view.head.counted_steps}")
    if run.rate is not None and run.state == "running":
        title.append(f"  {run.rate:.3g} steps/s")
    lines = [clipped(title, width), *_verdict(run, width)]
    if run.error or run.view is None:
        return lines
    lines += [*_time(run, width), *_findings(run, view, width, max(2, height // 6))]
    start = _start(run, view)
    maps = _maps(run, view, width, start)
    lines += [Text(), *_charts(run, maps[:1], width, height, start)]
    if not maps:
        lines += [Text(), Text(_no_map(run), "dim")]
    head = run.view.head
    about = [each for each in (head.coverage.text, str(head.overhead)) if each]
    for i, (collection, envelope) in enumerate(maps):
        room = height - len(lines) - 1 - len(about)
        # The chosen one takes what it is given, the others come if they fit.
        if room > (1 if i == 0 else len(envelope.names) + 1):
            lines += [Text(), *layer_map(envelope, collection, width, room)]
    return lines + [Text(plain(each).plain, "dim") for each in about]


def _charts(
    run: WatchedRun,
    maps: Sequence[tuple[str, Envelope]],
    width: int,
    height: int,
    start: int | None,
) -> list[Text]:
    """The losses, and beside them the first map by depth where there is room."""
    rows = _LOSS_ROWS if height < 30 else 2 * _LOSS_ROWS
    if width < _WIDTH_WITH_FLOW:
        return _loss_chart(run, width, rows, start)
    room = width - _FLOW_WIDTH - 2
    charts = _loss_chart(run, room, rows, start)
    for collection, envelope in maps:
        flow = depth_chart(envelope, collection, _FLOW_WIDTH, rows)
        charts = [
            beside(left, right, room + 2)
            for left, right in zip(charts or [Text()] * len(flow), flow, strict=False)
        ]
    return charts


def _verdict(run: WatchedRun, width: int) -> list[Text]:
    """The sentence about the run, and the key that has it judged."""
    if run.error or run.view is None:
        return [plain(run.error)]
    verdict = run.view.verdict
    hint = " Press c to check it." if verdict.tone == "unjudged" else ""
    return _wrapped(verdict.sentence + hint, width, _VERDICT_ROWS, indent=0)


def _time(run: WatchedRun, width: int) -> list[Text]:
    """Where the time of a step goes, and where each rank is; none if unknown."""
    breakdown = run.breakdown()
    bar = [] if breakdown is None else [time_bar(breakdown, width)]
    lines = list(run.python_lines().items())[:_PYTHON_ROWS] if not run.has_ended else []
    return [clipped(each, width) for each in (*bar, *(_place(*each) for each in lines))]


def _place(rank: int, line: Line) -> Text:
    """The line at which a rank was most in the last seconds."""
    place = line.short_caller or line.short_place
    at = plain(f"rank {rank}  {place}  {percent_text(line.share_of_all)}")
    return Text.assemble(("now   ", "bold"), at)


def _findings(run: WatchedRun, view: View, width: int, room: int) -> list[Text]:
    if not run.findings:
        return []
    chosen = min(view.finding, len(run.findings) - 1)
    first = max(0, min(chosen - room // 2, len(run.findings) - room))
    lines = []
    for i, finding in enumerate(run.findings[first : first + room], first):
        lines.append(clipped(_finding(finding), width))
        if i == chosen and finding.advice:
            lines += _wrapped(f"-> {finding.advice}", width, _ADVICE_ROWS)
    hidden = len(run.findings) - min(room, len(run.findings))
    if hidden or run.n_following:
        parts = [f"{hidden} more"] if hidden else []
        if run.n_following:
            parts.append(f"{run.n_following} consequences of these")
        lines.append(Text(f"    and {', '.join(parts)}", "dim"))
    return lines


def _finding(finding: Finding) -> Text:
    style = SEVERITY_STYLES.get(finding.severity.label, "")
    if finding.is_over:
        style = f"{style} dim"
    text = Text(f"{_SYMBOLS[finding.severity]} ", style)
    text.append(f"{finding.rule} ", "bold")
    since = f"since step {finding.first_step:,}"
    if finding.is_over:
        since = f"steps {finding.first_step:,} to {finding.last_step:,} (gone)"
    text.append_text(plain(f"{since}: {finding.tensor}: {finding.message}"))
    return text


def _start(run: WatchedRun, view: View) -> int | None:
    if not view.zoom or run.last_step < 1:
        return None
    # Rounded down, so that what is shown does not move with each step.
    span = max(8, (run.last_step + 1) >> view.zoom)
    return max(0, (run.last_step + 1 - span) // 8 * 8)


def _loss_chart(
    run: WatchedRun, width: int, rows: int, start: int | None
) -> list[Text]:
    """The losses that there is room for, side by side, each with its range."""
    losses = run.losses(2 * max(10, width // 2 - 12), start)
    shown = losses[: 2 if width >= 76 else 1]
    if not shown:
        return []
    each = width // len(shown) - 2
    drawn = [loss_chart(series, each, rows) for series in shown]
    if len(drawn) == 1:
        lines = drawn[0]
    else:
        lines = [
            beside(left, right, each + 2) for left, right in zip(*drawn, strict=True)
        ]
    if len(losses) > len(shown):
        lines[0].append(f"  and {len(losses) - len(shown)} more", "dim")
    return lines


def _maps(
    run: WatchedRun, view: View, width: int, start: int | None
) -> list[tuple[str, Envelope]]:
    """The collections that have statistics in the range, the chosen one first."""
    there = run.mapped()
    first = view.collection % len(there) if there else 0
    found = []
    for collection in (*there[first:], *there[:first]):
        envelope = run.layer_map(collection, width - NAME_WIDTH - 1, start)
        if envelope is not None and envelope.rows.any():
            found.append((collection, envelope))
    return found


def _no_map(run: WatchedRun) -> str:
    if run.view is not None and run.view.head.step_word == "round":
        return "Boosted trees have no layers to map. tdbg report shows the trees."
    if not run.mapped():
        return (
            "No statistics of gradients, weights or outputs were captured. Use "
            'include_collections=["gradients"], or press a to capture some now.'
        )
    return "No statistics in this range of steps."


# ---- lines -----------------------------------------------------------------------


def _wrapped(text: str, width: int, rows: int, indent: int = 4) -> list[Text]:
    """A text in so many lines at most; the last one is cut."""
    parts = textwrap.wrap(plain(text).plain, max(20, width - indent))
    if len(parts) > rows:
        parts = [*parts[: rows - 1], " ".join(parts[rows - 1 :])]
    return [clipped(Text(" " * indent + part), width) for part in parts]
