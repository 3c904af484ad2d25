"""``tdbg run``: capture a training without a change of its script."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tdbg.actions import Action
from tdbg.cli.output import console, counted, plain
from tdbg.cli.rule_options import (
    STOPPING,
    action_options,
    asked_to_stop,
    parse_actions,
    parse_rules,
    print_findings,
)
from tdbg.config.collections import CollectionRegistry
from tdbg.errors import NotARun, TdbgError
from tdbg.launch import command_of, environment_of
from tdbg.launch.supervise import end_like, holding_signals, supervise, was_asked_to_end
from tdbg.rules import Engine, Rule, with_absolute_path
from tdbg.run.directory import wait_for_run

__all__ = ["BackgroundJudge", "command"]


POLL_SECONDS = 0.1
# How long the engine may go on when the program has ended: a rule of the user may only
# be starting its process.
LAST_SECONDS = 60.0


class BackgroundJudge:
    """Judges a run in a thread, and prints findings on standard error.

    Errors of the judging are printed there too and never reach the program.

    Args:
        run: The directory in which the run will appear.
        rules: The rules to judge by.
        actions: The actions to take about findings.
    """

    def __init__(
        self, run: str, rules: Sequence[Rule], actions: Sequence[Action]
    ) -> None:
        self._run = run
        self._rules = tuple(rules)
        self._actions = tuple(actions)
        self._out = console(stderr=True)
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._judge, name="tdbg-rules", daemon=True
        )

    def start(self) -> None:
        """Start judging as soon as the run exists."""
        self._thread.start()

    def finish(self) -> None:
        """Judge the rest of the run when the program has ended; print the result.

        REQUIRES: ``holding_signals``; a signal that asks tdbg to end ends the judging.
        """
        self._ended.set()
        deadline = time.monotonic() + LAST_SECONDS
        while self._thread.is_alive():
            if was_asked_to_end() or time.monotonic() > deadline:
                self._print("not all was judged: see tdbg check")
                return
            self._thread.join(POLL_SECONDS)

    def _judge(self) -> None:
        try:
            try:
                wait_for_run(self._run, self._ended.is_set)
            except NotARun as error:
                if error.kind != "missing":
                    raise
                self._print("no training was captured, so there was nothing to judge")
                return
            engine = Engine(self._run, self._rules, self._actions)
            stopping = False
            for found in engine.follow(until=self._ended.is_set):
                print_findings([finding.to_json() for finding in found], self._out)
                if not stopping and asked_to_stop(self._actions):
                    stopping = True
                    self._print(STOPPING)
            report = engine.finish()
        except TdbgError as error:
            self._print(f"the run is no longer judged: {error}")
            return
        for note in report.notes:
            self._print(note)
        found_text = counted(len(report.findings), "finding")
        self._print(f"{counted(report.n_steps, 'step')} judged by rules: {found_text}")

    def _print(self, text: str) -> None:
        self._out.print(plain(f"tdbg: {text}"))


EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--out", type=click.Path(file_okay=False), help="The run directory.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    help="A file of settings, as TDBG_CONFIG names one.",
)
@click.option(
    "--rules",
    multiple=True,
    metavar="NAME",
    help="Capture what this rule needs, and judge by it if --on-finding is given; "
    "repeatable.  Default: 'default', all rules.",
)
@click.option("--include", multiple=True, help="A further collection; repeatable.")
@click.option(
    "--statistics-interval", type=click.IntRange(min=1), help="In steps; default 10."
)
@click.option(
    "--save-interval",
    type=click.IntRange(min=1),
    help="In steps, for values of --include.",
)
@action_options
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    out: str | None,
    config: str | None,
    rules: tuple[str, ...],
    include: tuple[str, ...],
    statistics_interval: int | None,
    save_interval: int | None,
    on_finding: tuple[str, ...],
    stop_on: str,
    file: str | None,
    dry_run: bool,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM, and capture the training in it.

    PROGRAM takes the place of tdbg: its input, output, signals and exit code are those
    of the verb.  With --on-finding or --actions, rules judge the run meanwhile.

        tdbg run -- python train.py --epochs 3

        tdbg run --rules default --on-finding stop -- python train.py

        tdbg run --out runs/digits -- torchrun --nproc-per-node 2 train.py
    """
    chosen = parse_rules(rules)
    CollectionRegistry(include)
    if out is None:
        out = str(
            Path("runs") / dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
        )
    settings: dict[str, Any] = {
        "out_dir": str(Path(out).absolute()),
        # The program may change its directory before it makes a hook.
        "rules": [with_absolute_path(rule) for rule in rules] or None,
        "include_collections": list(include),
        "statistics_interval": statistics_interval,
        "save_interval": save_interval,
    }
    environment = environment_of(settings, os.environ)
    if config is not None:
        environment["TDBG_CONFIG"] = str(Path(config).absolute())
    arguments = command_of(program)
    judged = bool(on_finding) or file is not None
    if judged:  # Bad actions are refused before anything is printed or started.
        parse_actions(
            out,
            on_finding,
            stop_on,
            file,
            judging=chosen,
            dry_run=dry_run,
            checks_only=True,
        )
    click.echo(f"tdbg: what is captured goes to {out}", err=True)
    try:
        if not judged:
            os.execvpe(arguments[0], arguments, environment)  # noqa: S606
        with holding_signals() as before:
            actions = parse_actions(
                out, on_finding, stop_on, file, judging=chosen, dry_run=dry_run
            )
            judge = BackgroundJudge(out, chosen, actions)
            judge.start()
            status = supervise(arguments, environment, before)
            judge.finish()
        end_like(status)
    except OSError as error:
        click.echo(f"tdbg: {arguments[0]}: {error.strerror}", err=True)
        is_missing = isinstance(error, FileNotFoundError)
        ctx.exit(EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE)
