"""Arguments and options that several verbs share."""

from __future__ import annotations

from typing import Any

import click

from tdbg.modes import ModeKeys

__all__ = [
    "DIRECTORY",
    "as_json",
    "collection",
    "mode",
    "regex",
    "run",
    "runs",
    "wait_for_answer",
]

# Whether it can be read shows when it is: a disk that refuses is no wrong command.
DIRECTORY = click.Path(file_okay=False, readable=False)


def _runs(
    ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Check a single run here; several are checked one by one later."""
    if len(value) == 1:
        DIRECTORY.convert(value[0], parameter, ctx)
    return value


run = click.argument("run", type=DIRECTORY)
runs = click.argument("runs", nargs=-1, required=True, callback=_runs, metavar="RUN...")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
regex = click.option(
    "--regex", multiple=True, help="Only tensors whose names match; repeatable."
)
collection = click.option("--collection", help="Only tensors of this collection.")

wait_for_answer = click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the training's answer; 0 does not wait.",
)


class _Mode(click.Choice[str]):
    """TRAIN, EVAL, PREDICT or GLOBAL, in any case, as a ModeKeys."""

    def __init__(self) -> None:
        super().__init__([key.name for key in ModeKeys], case_sensitive=False)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, ModeKeys):
            return value
        return ModeKeys[super().convert(value, param, ctx)]


mode = click.option(
    "--mode",
    type=_Mode(),
    help="Only steps of this mode, numbered as the mode counts them.  Default: all "
    "steps; numbers are those of training.",
)
