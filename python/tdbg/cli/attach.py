"""``tdbg attach``: let a running training capture something else for a while."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tdbg.attach import request_capture
from tdbg.cli import options
from tdbg.cli.output import EXIT_FOUND, console, emit_json, plain
from tdbg.cli.waiting import answer_of, has_ended
from tdbg.modes import ModeKeys
from tdbg.needs import Needs
from tdbg.rules.asking import needs_of
from tdbg.run_directory import run_of_process

__all__ = ["command"]


def _run(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """A directory, or that of the run to which a process writes."""
    if value.isdecimal() and not Path(value).exists():
        return str(run_of_process(int(value)))
    return value


@click.command("attach")
@click.argument("run", metavar="RUN|PID", type=options.DIRECTORY, callback=_run)
@click.option(
    "--collection", multiple=True, help="A collection of the training; repeatable."
)
@click.option(
    "--rules",
    multiple=True,
    metavar="NAME",
    help="What this rule needs, as with Hook(rules=); 'default': all.  Repeatable.",
)
@click.option("--regex", multiple=True, help="Names to find; repeatable.")
@click.option(
    "--interval",
    type=click.IntRange(min=1),
    help="Every so many steps.  Default: 1; what rules need, as the hook does.",
)
@click.option(
    "--for",
    "steps",
    type=click.IntRange(min=1),
    help="For so many steps of training.  Default: until it ends, or --end.",
)
@click.option(
    "--raw/--statistics", default=False, help="Values as well, or statistics only."
)
@click.option(
    "--mode",
    type=click.Choice([key.name for key in ModeKeys], case_sensitive=False),
    help="Only in steps of that mode.",
)
@click.option("--instead", is_flag=True, help="Of all else but losses and scalars.")
@click.option("--end", is_flag=True, help="End what was asked for before.")
@options.wait_for_answer
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    collection: tuple[str, ...],
    rules: tuple[str, ...],
    regex: tuple[str, ...],
    interval: int | None,
    steps: int | None,
    raw: bool,
    mode: str | None,
    instead: bool,
    end: bool,
    wait: float,
    as_json: bool,
) -> None:
    """Let the training that writes to RUN capture this as well, for a while.

    A training of this machine can be named by its process too.

    All its ranks take it at one step; what they made of it is said in the run, and
    here.  Exit code 1: it was refused, or had ended, or did not answer in time.

        tdbg attach runs/digits --rules default --for 500
    """
    request = request_capture(
        run,
        collections=collection,
        regex=regex,
        interval=interval or 1,
        steps=steps,
        raw=raw,
        mode=mode,
        instead=instead,
        end=end,
        needs=_needs(rules, interval),
    )
    answer: dict[str, Any] = {"state": "asked"}
    if wait > 0:
        late = {"state": "ended" if has_ended(run) else "unanswered"}
        answer = answer_of(run, request, wait) or late
    if as_json:
        emit_json({**answer, "request": request.id})
    else:
        console().print(plain(_sentence(answer, wait)))
    if answer["state"] in {"refused", "ended", "unanswered"}:
        ctx.exit(EXIT_FOUND)


def _needs(rules: tuple[str, ...], interval: int | None) -> tuple[Needs, ...]:
    """What these rules need, every so many steps if that is asked for."""
    found = needs_of(rules) if rules else ()
    if interval is None:
        return found
    often = (
        replace(need, interval=min(interval, need.interval or interval))
        for need in found
    )
    return tuple(dict.fromkeys(often))


def _sentence(answer: dict[str, Any], wait: float) -> str:
    state = answer["state"]
    if state == "refused":
        return f"refused: {answer.get('reason')}"
    if state == "ended":
        return "the training has ended"
    if state == "unanswered":
        return f"no answer within {wait:g} s; it stands, and is taken at a next step"
    if state == "asked":
        return "asked; the run will say what becomes of it"
    until = answer.get("until")
    end = "" if until is None else f", until step {until}"
    return f"accepted at training step {answer.get('training_step')}{end}"
