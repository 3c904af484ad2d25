"""``tdbg import``: make a run of what another tool wrote."""

from __future__ import annotations

import sys
import time

import click

from tdbg.cli import options
from tdbg.cli.output import EXIT_FOUND, console, emit_json, plain
from tdbg.config.quantities import plural
from tdbg.importers.smdebug import Importer, ImportPass, files_at
from tdbg.run.directory import local_path

__all__ = ["command"]

_POLL_SECONDS = 1.0
_SHOW_SECONDS = 0.2


@click.group("import")
def command() -> None:
    """Make a run of what another tool wrote."""


@command.command("smdebug")
@click.argument("directory", type=options.DIRECTORY)
@click.argument("run", type=options.DIRECTORY)
@click.option(
    "--follow", is_flag=True, help="Go on until the training that writes has ended."
)
@options.as_json
@click.pass_context
def _smdebug(
    ctx: click.Context, directory: str, run: str, follow: bool, as_json: bool
) -> None:
    """Make a RUN of DIRECTORY, which smdebug's hook wrote.

    DIRECTORY may be a URL, such as s3://bucket/job/debug-output, and stays as it is.
    Import it again into the same RUN to take in what has come since. Every other verb
    opens a DIRECTORY itself, too, and keeps what it made of it in a cache.

    The exit code is 1 if something in DIRECTORY could not be read.
    """
    with Importer(files_at(directory), local_path(run), _Shown()) as importer:
        done = importer.convert()
        steps, lost = done.steps, done.lost
        while follow and not done.has_ended:
            time.sleep(_POLL_SECONDS)
            done = importer.convert()
            steps, lost = steps + done.steps, lost + done.lost
    _print(run, ImportPass(steps, lost, done.has_ended), as_json=as_json)
    if lost:
        ctx.exit(EXIT_FOUND)


def _print(run: str, done: ImportPass, *, as_json: bool) -> None:
    if as_json:
        document = {"steps": done.steps, "lost": done.lost, "ended": done.has_ended}
        emit_json({"run": run, **document})
        return
    out = console()
    what = f"{plural(done.steps, 'step')} imported into {run}"
    if not done.has_ended:
        what += "; the training has not said that it has ended"
    out.print(plain(what))
    if done.lost:
        text = (
            f"{plural(done.lost, 'tensor')} could not be read: see 'tdbg check {run}'"
        )
        out.print(plain(text))


class _Shown:
    """Shows at a terminal how far the import is."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._out = sys.stderr if sys.stderr and sys.stderr.isatty() else None

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if self._out is None or now - self._last < _SHOW_SECONDS:
            return
        self._last = now
        print(f"\r{done:,} of {of:,} steps", end="\r", file=self._out, flush=True)
