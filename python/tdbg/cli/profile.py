"""``tdbg profile``: ask a running training for a window of its profiler."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from tdbg.cli import options
from tdbg.cli.attach import ENDED, POLL_SECONDS, has_ended
from tdbg.cli.output import EXIT_FOUND, console, emit_json, plain, print_table
from tdbg.config.messages import check_known
from tdbg.config.profiler import (
    FUNCTION_PROFILERS,
    ProfilerConfig,
    WindowConfig,
    parse_items,
)
from tdbg.config.quantities import percent
from tdbg.errors import ConfigurationError
from tdbg.remote import asked
from tdbg.run.profile_requests import request_profile
from tdbg.run.requests import Request
from tdbg.trial import create_trial

__all__ = ["command"]

_FLAGS = ("operators", "shapes", "stacks", "memory", "spans")
_OVER = ("ended", "refused")
_OPTIONS = {
    "num_steps": "--steps",
    "start_step": "--start-step",
    "duration": "--seconds",
    "start_time": "--start-time",
    "timer": "--timer",
    "functions": "--kinds",
}


@dataclass(slots=True)
class _Answers:
    """What the ranks have told about a request so far, by their workers' names.

    Attributes:
        last: The newest state of each.
        found: The operators and functions of each.
        gone: Workers that have ended without a last word.
        progress: Says what is new, for people.
    """

    progress: Callable[[str], None]
    last: dict[str, dict[str, Any]] = field(default_factory=dict)
    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    gone: tuple[str, ...] = ()

    def hear(self, worker: str, content: Mapping[str, Any], request: str) -> None:
        """Take an event, if it is about the request."""
        what, data = content.get("what"), dict(content)
        if what in ("operators", "functions") and data.get("window") == request:
            self.found.setdefault(worker, []).append(data)
        elif what in ("profile_window", "profiler") and data.get("request") == request:
            self.last[worker] = data
            sentence = _sentence(data)
            if sentence:
                self.progress(sentence)


def _sentence(data: Mapping[str, Any]) -> str:
    state, reason = data.get("state"), data.get("reason")
    if data.get("what") == "profiler":
        return "" if state == "refused" else "accepted: the settings have changed"
    if state == "accepted":
        first = data.get("training_step")
        if reason:
            return f"accepted, but {reason}"
        return f"accepted: it begins with step {first:,}" if first else "accepted"
    if state == "started":
        unknown = "".join(f"; {text}" for text in data.get("unknown", {}).values())
        return f"started with step {data.get('training_step', 0):,}{unknown}"
    return ""


@click.command("profile")
@options.run
@click.option("--steps", type=int, help="Number of training steps; default 1.")
@click.option("--start-step", type=int, help="First training step; default: the next.")
@click.option("--seconds", type=float, help="Length in seconds, instead of --steps.")
@click.option("--start-time", type=float, help="When to begin, in seconds since 1970.")
@click.option(
    "--kinds",
    default="operators",
    show_default=True,
    metavar="KIND,...",
    help="What to take: operators (also by shapes and stacks, with memory, and each "
    "call with spans), cprofile or pyinstrument.",
)
@click.option("--timer", default="default", help="What cProfile measures.")
@click.option(
    "--over-budget", is_flag=True, help="Take it even if the budget is used up."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a setting of the profiler instead; repeatable.",
)
@click.option("--top", default=20, show_default=True, help="Rows of a table.")
@options.wait_for_answer
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    steps: int | None,
    start_step: int | None,
    seconds: float | None,
    start_time: float | None,
    kinds: str,
    timer: str,
    over_budget: bool,
    settings: tuple[str, ...],
    top: int,
    wait: float,
    as_json: bool,
) -> None:
    """Ask the training that writes to RUN to time a few of its steps in detail.

    You see which operators or Python functions take the time.  The exit code is 1 if
    the training refused, had ended, or did not answer in time.

        tdbg profile runs/digits --steps 5

        tdbg profile runs/digits --steps 5 --kinds operators,shapes,cprofile

        tdbg profile runs/digits --set system_interval=0.1
    """
    changes = parse_items(",".join(settings))
    ProfilerConfig().changed(changes)  # Errors meet whoever types them.
    window = None
    if not changes:
        given = {
            "num_steps": steps,
            "start_step": start_step,
            "duration": seconds,
            "start_time": start_time,
        }
        window = _window(**given, timer=timer, **_kinds(kinds))
    elif (steps, start_step, seconds, start_time) != (None,) * 4:
        msg = "--set changes settings and opens no window: ask for one at a time"
        raise ConfigurationError(msg)
    if has_ended(run):
        _print_state("ended", None, as_json)
        ctx.exit(EXIT_FOUND)
    request = request_profile(
        asked(run), window=window, settings=changes, over_budget=over_budget
    )
    if not wait:
        _print_state("asked", request, as_json)
        return
    err = console(stderr=True)
    answers = _Answers(lambda text: None if as_json else err.print(plain(text)))
    is_complete = _wait(run, request, answers, wait)
    if as_json:
        emit_json(_as_json(request, answers, is_complete))
    else:
        _print(answers, top, wait, is_complete)
    states = {data["state"] for data in answers.last.values()}
    if not is_complete or answers.gone or "refused" in states:
        ctx.exit(EXIT_FOUND)


def _window(**settings: Any) -> WindowConfig:
    """Return a window; errors name the options that were typed."""
    try:
        return WindowConfig(**settings)
    except ConfigurationError as error:
        text = str(error)
        for name, option in _OPTIONS.items():
            text = re.sub(rf"\b{name}\b", option, text)
        raise ConfigurationError(text) from None


def _kinds(text: str) -> dict[str, Any]:
    """Return the settings of a window that takes these kinds."""
    words = [word for word in map(str.strip, text.split(",")) if word]
    check_known(words, [*_FLAGS, *FUNCTION_PROFILERS], "--kinds: unknown")
    functions = [word for word in words if word in FUNCTION_PROFILERS]
    if len(functions) > 1:
        msg = "--kinds: cprofile or pyinstrument, not both in one window"
        raise ConfigurationError(msg)
    flags: dict[str, Any] = {word: True for word in words if word in _FLAGS}
    flags["operators"] = bool(flags)
    return {**flags, "functions": functions[0] if functions else None}


def _wait(run: str, request: Request, answers: _Answers, seconds: float) -> bool:
    """Wait until all ranks have said how it ended; return whether they have."""
    deadline = time.monotonic() + seconds
    trial = create_trial(run)
    workers = {
        f"train-{rank}-{generation}": f"worker_{rank}"
        for rank, generation in request.generations.items()
    }
    n_heard = 0
    while True:
        states = trial.worker_states()
        events = list(trial.events())
        for event in events[n_heard:]:
            if event.kind == "change" and event.writer in workers:
                answers.hear(workers[event.writer], event.data, request.id)
        n_heard = len(events)
        missing = [name for name in workers.values() if not _is_over(answers, name)]
        silent = [name for name in missing if states.get(name) not in ENDED]
        answers.gone = tuple(name for name in missing if name not in silent)
        if not silent or time.monotonic() >= deadline:
            return not silent
        time.sleep(POLL_SECONDS)
        trial.refresh()


def _is_over(answers: _Answers, worker: str) -> bool:
    data = answers.last.get(worker)
    if data is None:
        return False
    return data["state"] in _OVER or data.get("what") == "profiler"


def _as_json(request: Request, answers: _Answers, is_complete: bool) -> dict[str, Any]:
    state = "unanswered"
    if answers.last:
        state = next(iter(answers.last.values()))["state"]
    elif answers.gone:
        state = "ended"
    return {
        "request": request.id,
        "state": state if is_complete or answers.last else "unanswered",
        "workers": answers.last,
        "found": answers.found,
        "gone": list(answers.gone),
    }


def _print_state(state: str, request: Request | None, as_json: bool) -> None:
    if as_json:
        emit_json({"state": state, "request": None if request is None else request.id})
        return
    texts = {
        "ended": "the training has ended, so nobody can be asked; ask for a window of "
        "the next one at its start: tdbg run --profiler 'start_step=100, num_steps=5'",
        "asked": "asked; use --wait to wait for the answer",
    }
    console().print(plain(texts[state]))


def _print(answers: _Answers, top: int, wait: float, is_complete: bool) -> None:
    out = console()
    several = len({*answers.last, *answers.gone}) > 1
    for worker in sorted(answers.last):
        data = answers.last[worker]
        head = f"{worker}: " if several else ""
        if data["state"] == "refused":
            out.print(plain(f"{head}refused: {data.get('reason')}"))
        elif data["state"] == "ended":
            out.print(plain(head + _summary(data)))
            for found in answers.found.get(worker, ()):
                out.print()
                _print_found(found, data, top)
    for worker in answers.gone:
        head = f"{worker} " if several else "the training "
        began = answers.last.get(worker, {}).get("state") == "started"
        out.print(plain(f"{head}has ended {'in' if began else 'before'} the window"))
    if not is_complete:
        out.print(plain(f"no end of it within {wait:g} s; the request stands"))


def _summary(data: Mapping[str, Any]) -> str:
    first, last = data.get("first_step", 0), data.get("last_step", 0)
    n = last - first + 1
    duration = data.get("end_ns", 0) - data.get("start_ns", 0)
    steps = f"step {first:,}" if n == 1 else f"steps {first:,} to {last:,}"
    text = f"{steps}: {duration / 1e6:,.1f} ms; the window has cost "
    text += f"{data.get('cost_ns', 0) / 1e6:,.1f} ms"
    if data.get("reason", "").startswith("ended early"):
        text += f"; {data['reason']}"
    unknown = data.get("unknown", {})
    return text + "".join(f"; {kind}: {why}" for kind, why in unknown.items())


def _print_found(found: Mapping[str, Any], window: Mapping[str, Any], top: int) -> None:
    is_operators = found.get("what") == "operators"
    rows = found.get("operators" if is_operators else "functions", [])
    duration = max(1, window.get("end_ns", 0) - window.get("start_ns", 0))
    extra = [name for name in _EXTRA if any(row.get(name) for row in rows)]
    what = found.get("device") if is_operators else found.get("profiler")
    name = f"{'operator' if is_operators else 'function'} ({what})"
    columns = [name, "calls", "own ms", "share", "total ms", *map(_EXTRA.get, extra)]
    print_table(
        [str(column) for column in columns],
        [_cells(row, duration, extra) for row in rows[:top]],
        console(),
        right={"calls", "own ms", "share", "total ms", "device ms", "bytes"},
    )
    more = found.get("n_names", len(rows)) - len(rows[:top])
    if more > 0:
        console().print(plain(f"{more:,} more"))


_EXTRA = {
    "device_ns": "device ms",
    "bytes": "bytes",
    "shapes": "shapes",
    "line": "line",
}


def _cells(row: Mapping[str, Any], duration: int, extra: Iterable[str]) -> list[str]:
    cells = [
        str(row.get("name")),
        f"{row['calls']:,}" if "calls" in row else "",
        f"{row.get('self_ns', 0) / 1e6:,.2f}",
        percent(100.0 * row.get("self_ns", 0) / duration),
        f"{row.get('total_ns', 0) / 1e6:,.2f}",
    ]
    for name in extra:
        value = row.get(name, "")
        if name == "device_ns":
            value = f"{(value or 0) / 1e6:,.2f}"
        cells.append(f"{value:,}" if isinstance(value, int) else str(value))
    return cells
