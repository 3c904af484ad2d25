"""``tdbg run``: capture a training without a change of its script."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import click

from tdbg.cli.acting import action_options, parse_actions
from tdbg.cli.beside import Beside
from tdbg.cli.findings import parse_rules
from tdbg.collections import CollectionRegistry
from tdbg.launch import command_of, environment_of
from tdbg.launch.supervise import end_like, holding_signals, supervise
from tdbg.rules.asking import from_anywhere

__all__ = ["command"]

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
    help="Capture what this rule needs, and judge by it where --on-finding is given; "
    "as --rule of check, repeatable.  Default: all, as 'default'.",
)
@click.option("--include", multiple=True, help="A further collection; repeatable.")
@click.option(
    "--statistics-interval", type=click.IntRange(min=1), help="In steps; default 10."
)
@click.option(
    "--save-interval", type=click.IntRange(min=1), help="Of values of --include."
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

    PROGRAM is run in the place of tdbg: its input, output, signals and exit code are
    its own.  With --on-finding or --actions rules judge the run meanwhile.

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
        "rules": [from_anywhere(rule) for rule in rules] or None,
        "include_collections": list(include),
        "statistics_interval": statistics_interval,
        "save_interval": save_interval,
    }
    environment = environment_of(settings, os.environ)
    if config is not None:
        environment["TDBG_CONFIG"] = str(Path(config).absolute())
    arguments = command_of(program)
    judged = bool(on_finding) or file is not None
    if judged:  # Refused before anything is said or done.
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
            beside = Beside(out, chosen, actions)
            beside.start()
            status = supervise(arguments, environment, before)
            beside.finish()
        end_like(status)
    except OSError as error:
        click.echo(f"tdbg: {arguments[0]}: {error.strerror}", err=True)
        is_missing = isinstance(error, FileNotFoundError)
        ctx.exit(EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE)
