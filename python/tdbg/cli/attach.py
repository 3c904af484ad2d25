"""``tdbg attach``: ask a running training to capture something else for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from tdbg.cli import options
from tdbg.cli.output import EXIT_FOUND, console, emit_json, plain
from tdbg.config.needs import Needs
from tdbg.modes import ModeKeys
from tdbg.remote import asked
from tdbg.rules import needs_of
from tdbg.run.directory import run_of_process
from tdbg.run.requests import Request, request_capture
from tdbg.trial import create_trial

__all__ = ["Answers", "answer_of", "command", "has_ended", "stopped"]


POLL_SECONDS = 0.1
# The clocks of machines differ: the request may have caused an end that seems to have
# come this little before it.
NEAR_NS = int(5e9)
# States of a writer that writes nothing more.
ENDED = ("closed", "dead")


@dataclass(frozen=True, slots=True)
class Answers:
    """What the ranks made of a request.

    Attributes:
        first: What the first one that answered said; None: none has.
        silent: The states of others that may go on, by their workers' names.
        gone: Workers that have ended without an answer.
    """

    first: dict[str, Any] | None
    silent: dict[str, str]
    gone: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the workers that have not answered, as JSON; empty if all have."""
        said: dict[str, Any] = {}
        if self.silent:
            said["silent"] = self.silent
        if self.gone:
            said["gone"] = list(self.gone)
        return said

    def sentence(self) -> str:
        """Say which workers have not answered; empty if all have."""
        texts = [
            f"no answer from {name}, {_SILENCE.get(state, state)}"
            for name, state in self.silent.items()
        ]
        texts += [f"{name} has ended without an answer" for name in self.gone]
        return "".join(f"; {text}" for text in texts)


# What a rank that has not answered does, by the state of its writer.
_SILENCE = {
    "running": "which runs",
    "stalled": "which shows no sign of life",
    "unknown": "which may have died",
}


def answer_of(run: str, request: Request, seconds: float) -> Answers:
    """Wait for the events about a request to capture, of each rank that writes."""

    def answers(kind: str, content: dict[str, Any], _: int) -> bool:
        is_about = content.get("what") == "capture"
        return kind == "change" and is_about and content.get("request") == request.id

    return _wait(run, request, answers, seconds)


def stopped(run: str, request: Request, seconds: float) -> Answers:
    """Wait for all ranks that write to stop, for whatever request."""
    began = time.time_ns()

    def answers(kind: str, content: dict[str, Any], wall_ns: int) -> bool:
        if kind != "status" or wall_ns < began - NEAR_NS:
            return False
        return content.get("training") in ("stopped", "ended")  # Of any type.

    return _wait(run, request, answers, seconds)


def has_ended(run: str) -> bool:
    """Whether the training has ended, so that it cannot answer."""
    return create_trial(run).loaded_all_steps


def _wait(
    run: str,
    request: Request,
    answers: Callable[[str, dict[str, Any], int], bool],
    seconds: float,
) -> Answers:
    deadline = time.monotonic() + seconds
    trial = create_trial(run)
    writers = {
        f"train-{rank}-{generation}": f"worker_{rank}"
        for rank, generation in request.generations.items()
    }
    while True:
        states = trial.worker_states()
        found = [
            event
            for event in trial.events()
            if answers(event.kind, event.data, event.wall_ns)
        ]
        told = {writers.get(event.writer) for event in found}
        missing = [worker for worker in writers.values() if worker not in told]
        silent = [worker for worker in missing if states.get(worker) not in ENDED]
        if not silent or time.monotonic() >= deadline:
            return Answers(
                first=dict(found[0].data) if found else None,
                silent={
                    worker: states.get(worker, "which has written nothing")
                    for worker in silent
                },
                gone=tuple(worker for worker in missing if worker not in silent),
            )
        time.sleep(POLL_SECONDS)
        trial.refresh()


def _run(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Replace the number of a process by the directory of the run that it writes."""
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
    help="Capture what this rule needs, as Hook(rules=) does; 'default': all rules.  "
    "Repeatable.",
)
@click.option(
    "--regex", multiple=True, help="A regular expression for names; repeatable."
)
@click.option(
    "--interval",
    type=click.IntRange(min=1),
    help="Steps from one capture to the next.  Default: 1; for rules, what they need.",
)
@click.option(
    "--for",
    "steps",
    type=click.IntRange(min=1),
    help="Number of training steps.  Default: until the training ends, or --end.",
)
@click.option(
    "--raw/--statistics",
    default=False,
    help="Capture values as well, or statistics only.",
)
@click.option(
    "--mode",
    type=click.Choice([key.name for key in ModeKeys], case_sensitive=False),
    help="Capture only in steps of that mode.",
)
@click.option(
    "--instead",
    is_flag=True,
    help="Capture nothing else but losses and scalars.",
)
@click.option("--end", is_flag=True, help="End all earlier requests.")
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
    """Ask the training that writes to RUN to capture more, for a while.

    If the training runs on this machine, you can give its process ID instead of RUN.

    All ranks obey at the same step, and the run records their answers.  You see one
    answer, and the ranks that gave none.  The exit code is 1 if the training refused,
    had ended, or did not answer in time.

        tdbg attach runs/digits --rules default --for 500
    """
    request = request_capture(
        asked(run),
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
    answers = Answers(None, {}, ())
    if wait > 0:
        unanswered = {"state": "ended" if has_ended(run) else "unanswered"}
        answers = answer_of(run, request, wait)
        answer = answers.first or unanswered
    if as_json:
        emit_json({**answer, **answers.to_json(), "request": request.id})
    else:
        several = answers.sentence() if len(request.generations) > 1 else ""
        console().print(plain(_sentence(answer, wait) + several))
    if answers.silent or answer["state"] in {"refused", "ended", "unanswered"}:
        ctx.exit(EXIT_FOUND)


def _needs(rules: tuple[str, ...], interval: int | None) -> tuple[Needs, ...]:
    """The needs of these rules, at the interval that the user gave, if any."""
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
        return f"no answer within {wait:g} s; the request stands"
    if state == "asked":
        return "asked; use --wait to wait for the answer"
    until = answer.get("until")
    end = "" if until is None else f", until step {until}"
    return f"accepted at training step {answer.get('training_step')}{end}"
