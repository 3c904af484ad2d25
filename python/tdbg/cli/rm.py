"""``tdbg rm``: remove runs."""

from __future__ import annotations

import click

from tdbg.cli import options
from tdbg.cli.output import EXIT_FOUND, console, emit_json, n_bytes, plain
from tdbg.config.quantities import join_names, plural
from tdbg.run.removal import RemovedRun, remove_run

__all__ = ["command"]


@click.command("rm")
@options.runs
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also runs to which a training writes.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, runs: tuple[str, ...], yes: bool, force: bool, as_json: bool
) -> None:
    """Remove RUNs: tdbg's files, and the directories if nothing else is in them.

    Asks first.  The exit code is 1 if you say no.
    """
    # All are looked at before the first one goes.
    found = [remove_run(run, force=force, dry_run=True) for run in runs]
    if not yes and not _confirm(found):
        ctx.exit(EXIT_FOUND)
    removed = [remove_run(run, force=force) for run in runs]
    if as_json:
        emit_json({"removed": [each.to_json() for each in removed]})
        return
    for each in removed:
        console().print(plain(f"removed {each.run}: {n_bytes(each.n_bytes)}"))
        if each.left:
            names = join_names(each.left)
            console().print(plain(f"files that are not tdbg's stay there: {names}"))


def _confirm(found: list[RemovedRun]) -> bool:
    for each in found:
        click.echo(f"{each.run}: {n_bytes(each.n_bytes)}", err=True)
    return click.confirm(f"Remove {plural(len(found), 'run')}?", err=True)
