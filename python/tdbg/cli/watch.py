"""``tdbg watch``: judge a run while it trains, and stop it if asked to."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tdbg.actions import close_all
from tdbg.cli import options
from tdbg.cli.acting import action_options, parse_actions, parse_specs
from tdbg.cli.check import conclude, overhead_of
from tdbg.cli.findings import parse_rules, print_findings, rule_option
from tdbg.cli.output import EXIT_FOUND, console, emit_json_line, plain
from tdbg.cli.sweep import jobs_option, judge_many
from tdbg.cli.sweep_places import is_many
from tdbg.cli.sweep_worker import Task
from tdbg.errors import NotARun
from tdbg.rules import Engine
from tdbg.run_directory import open_run

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

    With --json each line is a document whose "event" is "watching", "finding" or
    "ended"; of many runs also "unreadable", and each has a "run".
    """
    if is_many(runs):
        # What cannot be made of them is refused before anything begins.
        actions = parse_actions(runs[0], on_finding, stop_on, file, dry_run=dry_run)
        close_all(actions, 0.1)
        specs = parse_specs(on_finding, stop_on, file, dry_run=dry_run)
        task = Task(rules=rules, follow=True, actions=specs)
        ctx.exit(judge_many(runs, task, jobs, wait=wait, as_json=as_json))
    (run,) = runs
    chosen = parse_rules(rules)
    actions = parse_actions(run, on_finding, stop_on, file, dry_run=dry_run)
    _wait_for(run, wait)
    engine = Engine(run, chosen, actions)
    out = console()
    if as_json:
        names = [rule.name for rule in chosen]
        emit_json_line({"event": "watching", "run": run, "rules": names})
    else:
        out.print(plain(f"watching {run} with {len(chosen)} rules; Ctrl-C leaves it"))
    try:
        for found in engine.follow():
            findings = [finding.to_json() for finding in found]
            if as_json:
                for finding in findings:
                    emit_json_line({"event": "finding", **finding})
            else:
                print_findings(findings, out)
    except KeyboardInterrupt:
        engine.stop()
        for _ in engine.follow():
            pass
    report = engine.finish()
    if as_json:
        cost = overhead_of(run).to_json()
        emit_json_line({"event": "ended", **report.to_json(), "cost": cost})
    else:
        conclude(report)
        out.print(plain(str(overhead_of(run))))
    if not report.healthy:
        ctx.exit(EXIT_FOUND)


def _wait_for(run: str, seconds: float) -> None:
    """Return when *run* is one; raise what is wrong with it after *seconds*."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            open_run(run)
        except NotARun:
            missing = not (Path(run) / "RUN.json").exists()
            if not missing or time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_SECONDS)
        else:
            return
