"""``tdbg watch``: judge a run while it trains, and stop it if asked to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from tdbg.actions import Action, close_all
from tdbg.cli import options
from tdbg.cli.acting import (
    ENDS,
    GONE,
    STOPPING,
    action_options,
    asked_to_stop,
    parse_actions,
    parse_specs,
)
from tdbg.cli.check import conclude, overhead_of
from tdbg.cli.findings import parse_rules, print_findings, rule_option
from tdbg.cli.output import (
    EXIT_FOUND,
    console,
    counted,
    emit_json_line,
    plain,
)
from tdbg.cli.sweep import jobs_option, judge_many
from tdbg.cli.sweep_places import is_many
from tdbg.cli.sweep_worker import Task
from tdbg.errors import NotARun
from tdbg.findings import Finding
from tdbg.rules import Engine, Report
from tdbg.run_directory import RUN_FILE, open_run

__all__ = ["command"]

LOOK_SECONDS = 0.1


@click.command("watch")
@options.runs
@rule_option
@action_options
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for RUN to appear; of a pattern, for another run once all "
    "have ended.",
)
@jobs_option
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    rules: tuple[str, ...],
    on_finding: tuple[str, ...],
    stop_on: str,
    file: str | None,
    dry_run: bool,
    wait: float,
    jobs: int,
    as_json: bool,
) -> None:
    """Judge each RUN while it trains, until all trainings have ended.

    RUN may be a pattern in quotes, as 'runs/*': runs that appear later are judged, too.

    With --json each line is a document whose "event" is "watching", "finding",
    "stopping" or "ended"; of many runs also "unreadable", and each has a "run".
    """
    chosen = parse_rules(rules)
    if is_many(runs):
        # What cannot be made of them is refused before anything begins.
        checked = parse_actions(
            runs[0],
            on_finding,
            stop_on,
            file,
            judging=chosen,
            dry_run=dry_run,
            checks_only=True,
        )
        close_all(checked, 0.1)
        specs = parse_specs(on_finding, stop_on, file, judging=chosen, dry_run=dry_run)
        task = Task(rules=rules, follow=True, actions=specs)
        ctx.exit(judge_many(runs, task, jobs, wait=wait, as_json=as_json))
    (run,) = runs
    actions = parse_actions(
        run, on_finding, stop_on, file, judging=chosen, dry_run=dry_run
    )
    teller = _Teller(run, as_json=as_json)
    if wait > 0 and not (Path(run) / RUN_FILE).exists():
        teller.waits(wait)
    _wait_for(run, wait)
    engine = Engine(run, chosen, actions)
    teller.begins([rule.name for rule in chosen])
    # Of one that has ended nobody is asked.
    stopping = () if engine.state in GONE else actions
    try:
        for found in engine.follow():
            teller.finds(found, stopping)
    except KeyboardInterrupt:
        engine.stop()
        for _ in engine.follow():
            pass
    state = engine.state
    report = engine.finish()
    teller.ends(report, state, named=bool(rules))
    if not report.healthy:
        ctx.exit(EXIT_FOUND)


class _Teller:
    """Tells of one run, for people or for programs."""

    def __init__(self, run: str, *, as_json: bool) -> None:
        self._run = run
        self._as_json = as_json
        self._out = console()
        self._stopping = False

    def waits(self, seconds: float) -> None:
        """The run is not there yet."""
        if not self._as_json:
            text = f"waiting up to {seconds:g} s for {self._run} to appear"
            self._out.print(plain(text))

    def begins(self, rules: list[str]) -> None:
        """The run is there."""
        if self._as_json:
            emit_json_line({"event": "watching", "run": self._run, "rules": rules})
            return
        what = f"watching {self._run} with {counted(len(rules), 'rule')}"
        self._out.print(plain(f"{what}; Ctrl-C leaves it"))

    def finds(self, found: Sequence[Finding], actions: Sequence[Action]) -> None:
        """Something was found, and actions were taken."""
        findings = [finding.to_json() for finding in found]
        if self._as_json:
            for finding in findings:
                emit_json_line({"event": "finding", **finding})
        else:
            print_findings(findings, self._out)
        if self._stopping or not asked_to_stop(actions):
            return
        self._stopping = True
        if self._as_json:
            emit_json_line({"event": "stopping", "run": self._run})
        else:
            self._out.print(STOPPING)

    def ends(self, report: Report, state: str, *, named: bool) -> None:
        """All is judged that will be."""
        cost = overhead_of(self._run)
        if self._as_json:
            document = {**report.to_json(), "state": state, "cost": cost.to_json()}
            emit_json_line({"event": "ended", **document})
            return
        conclude(report, named=named)
        if state in ENDS:
            self._out.print(f"the training {ENDS[state]}")
        self._out.print(plain(str(cost)))


def _wait_for(run: str, seconds: float) -> None:
    """Return when *run* is one; raise what is wrong with it after *seconds*."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            open_run(run)
        except NotARun:
            missing = not (Path(run) / RUN_FILE).exists()
            if not missing or time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_SECONDS)
        else:
            return
