"""``tdbg learn``: learn invariants from healthy runs."""

from __future__ import annotations

import sys

import click

from tdbg.cli import options
from tdbg.cli.output import console, emit_json, plain
from tdbg.cli.progress import progress_bar
from tdbg.config.quantities import plural
from tdbg.rules import InvariantFile, learn

__all__ = ["command"]


@click.command("learn")
@click.argument(
    "runs", nargs=-1, required=True, type=options.DIRECTORY, metavar="RUN..."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="The file to write.  Default: standard output.",
)
@options.as_json
def command(runs: tuple[str, ...], out: str | None, as_json: bool) -> None:
    """Learn what holds in each healthy RUN, and write it as a file of invariants.

    'tdbg check' and 'tdbg watch' compare other runs with it: --invariants FILE. The
    file has a line for each invariant, which you may edit or delete.
    """
    with progress_bar("learning") as update:
        learnt = learn(*runs, out=out, progress=update)
    if as_json:
        emit_json({**learnt.to_json(), "file": out})
        return
    if out is None:
        sys.stdout.write(learnt.text())
    _print(learnt, out)


def _print(learnt: InvariantFile, out: str | None) -> None:
    shown = console(stderr=out is None)
    n, runs = len(learnt.invariants), plural(len(learnt.runs), "run")
    shown.print(plain(f"learnt {plural(n, 'invariant')} from {runs}"))
    counts = (f"{count:,} {kind}" for kind, count in learnt.counts().items())
    shown.print(plain(f"    {', '.join(counts)}"), style="dim")
    if out is not None:
        shown.print(plain(f"compare with them: tdbg check RUN --invariants {out}"))
