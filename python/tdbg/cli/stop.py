"""``tdbg stop``: ask a training to stop."""

from __future__ import annotations

from typing import Any

import click

from tdbg.cli import options
from tdbg.cli.attach import Answers, has_ended, stopped
from tdbg.cli.output import EXIT_FOUND, console, emit_json, plain
from tdbg.remote import asked
from tdbg.run.requests import request_stop

__all__ = ["command"]


@click.command("stop")
@options.run
@click.option("--reason", default="tdbg stop", help="Why, in one sentence.")
@options.wait_for_answer
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, run: str, reason: str, wait: float, as_json: bool
) -> None:
    """Ask the training that writes to RUN to stop at its next forward.

    The exit code is 1 if the training did not stop in time, or had already ended.
    """
    # Checked first: the training may end because of the request.
    request = None if has_ended(run) else request_stop(asked(run), reason=reason)
    answer: dict[str, Any] = {"state": "ended" if request is None else "asked"}
    answers = Answers(None, {}, ())
    if request is not None and wait > 0:
        answers = stopped(run, request, wait)
        is_stopped = answers.first is not None and not answers.silent
        otherwise = "ended" if has_ended(run) else "unanswered"
        answer = {"state": "stopped" if is_stopped else otherwise}
    if as_json:
        told = {"request": None if request is None else request.id}
        emit_json({**answer, **answers.to_json(), **told})
    else:
        texts = {
            "asked": "asked; it stops at its next forward",
            "stopped": "stopped",
            "ended": "the training had already ended",
            "unanswered": f"not stopped within {wait:g} s; the request stands",
        }
        is_one = request is None or len(request.generations) == 1
        several = "" if is_one else answers.sentence()
        console().print(plain(texts[answer["state"]] + several))
    if answer["state"] in {"ended", "unanswered"}:
        ctx.exit(EXIT_FOUND)
