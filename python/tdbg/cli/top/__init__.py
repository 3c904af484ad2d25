"""``tdbg top``: runs on the whole screen, while they train.

Implements docs/cli.md, "The whole screen".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click
from rich.live import Live

from tdbg.cli import options
from tdbg.cli.output import console, emit_json_line, plain
from tdbg.cli.sweep import RunFinder
from tdbg.cli.top.board import WatchedRun
from tdbg.cli.top.commands import Commands
from tdbg.cli.top.screens import View, draw
from tdbg.errors import NotARun
from tdbg.view import RunRow

__all__ = ["command"]

# A key is answered at once; what is written to a run is seen after so long.
_POLL_SECONDS = 0.25
_FRAME_SECONDS = 0.1


@click.command("top")
@options.runs
@click.option("--once", is_flag=True, help="Print the screen once and exit.")
@options.as_json
def command(runs: tuple[str, ...], once: bool, as_json: bool) -> None:
    """Show RUNs on the whole screen while they train: losses, findings, all layers.

    RUN may be a quoted pattern such as 'runs/*'; tdbg adds runs that appear later.
    Press ? to see the keys that open a run, check it, stop it or capture more.

    Without a terminal, or with --json, tdbg prints a line for each change until all
    trainings have ended.
    """
    board = _Board(runs)
    board.look()
    if not board.runs:
        named = " ".join(runs)
        msg = f"{named} matches no run"
        raise NotARun(msg, file=named, kind="missing")
    if once and not as_json:
        _print_once(board)
    elif as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        _print_changes(board, as_json=as_json, once=once)
    else:
        _show(board)


class _Board:
    """The runs that the arguments name, those that appear later, too."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._finder = RunFinder(arguments)
        self.runs: list[WatchedRun] = []

    def look(self) -> list[WatchedRun]:
        """Take in what is new; return the runs that have changed."""
        self.runs += [WatchedRun(path) for path in self._finder.find_new()]
        return [run for run in self.runs if run.look()]


def _print_once(board: _Board) -> None:
    out = console()
    width, height = (out.width, out.height) if out.is_terminal else (120, 40)
    view = View(is_open=len(board.runs) == 1)
    screen = draw(board.runs, view, width, height)
    lines = screen.split("\n", allow_blank=True)[:-1]  # Without the line of keys.
    while lines and not lines[-1].plain.strip():
        lines.pop()
    for line in lines:
        out.print(line)


def _print_changes(board: _Board, *, as_json: bool, once: bool) -> None:
    """Print a line for each run, and one whenever its state or its findings change."""
    out = console()
    told: dict[str, tuple[object, ...]] = {}
    while True:
        for run in board.runs:
            document = _document(run)
            known = document["state"], document["findings"]
            if told.get(run.path) == known:
                continue
            told[run.path] = known
            if as_json:
                emit_json_line(document)
            else:
                out.print(plain(_line(run)))
        if once or all(run.has_ended for run in board.runs):
            return
        time.sleep(_POLL_SECONDS)
        board.look()


def _document(run: WatchedRun) -> dict[str, object]:
    return {
        "run": run.path,
        **RunRow(None if run.error else run.view, run.error).to_json(),
        "state": run.state,
        "losses": {each.name: each.newest for each in run.losses(1)},
        "findings": [finding.to_json() for finding in run.findings],
    }


def _line(run: WatchedRun) -> str:
    if run.error:
        return f"{run.path}: {run.state}: {run.error}"
    view = run.view
    if view is None:
        return f"{run.path}: {run.state}"
    text = f"{run.path}: {view.head.state}. {view.verdict.sentence}"
    return text if view.loss is None else f"{text} Last loss {view.loss.text}."


def _show(board: _Board) -> None:
    """Show the screen until the user quits."""
    from tdbg.cli.top.keys import Keys  # POSIX only, as terminals of this kind are.

    out = console()
    view = View(is_open=len(board.runs) == 1)
    commands = Commands(board.runs, view)
    with Keys() as keys, Live(console=out, screen=True, auto_refresh=False) as live:
        drawn: object = None
        while not commands.has_quit:
            changed = bool(board.look()) or commands.look()
            shown = out.width, out.height, changed
            if changed or shown != drawn:
                live.update(draw(board.runs, view, out.width, out.height), refresh=True)
                drawn = out.width, out.height, False
            key = keys.read(_POLL_SECONDS)
            began = time.monotonic()
            while key is not None and not commands.has_quit:
                commands.press(key)
                drawn = None
                # What is pressed at once is drawn at once.
                is_due = time.monotonic() - began > _FRAME_SECONDS
                key = None if is_due else keys.read(0)
