"""``tdbg stacks``: where the processes of a training are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from tdbg.cli import options
from tdbg.cli.attach import has_ended
from tdbg.cli.output import EXIT_FOUND, console, emit_json, plain
from tdbg.run.directory import run_of_process
from tdbg.run.stack_groups import StackGroup, group_stacks, say_where
from tdbg.run.stacks import Frame, ProcessStack, ask_for_stacks

__all__ = ["command"]


def _run(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Replace the number of a process by the directory of the run that it writes."""
    if value.isdecimal() and not Path(value).exists():
        return str(run_of_process(int(value)))
    return value


@click.command("stacks")
@click.argument("run", metavar="RUN|PID", type=options.DIRECTORY, callback=_run)
@click.option(
    "--wait",
    type=click.FloatRange(min=0.1, max=600),
    default=5.0,
    show_default=True,
    help="Seconds to wait for processes that do not answer.",
)
@click.option(
    "--threads", is_flag=True, help="Show all threads, not only the main thread."
)
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, run: str, wait: float, threads: bool, as_json: bool
) -> None:
    """Show where all ranks and loader workers of a live RUN are now.

    Processes answer by themselves, also if they hang in C code or wait for other
    ranks; no debugger and no special rights are needed.  Those at the same place are
    shown together.

    The exit code is 1 if a process does not answer, or none is left to ask.
    """
    processes = ask_for_stacks(run, wait)
    groups = group_stacks(processes)
    says = say_where(processes) or _nobody(run)
    if as_json:
        emit_json(
            {
                "run": run,
                "says": says,
                "groups": [group.to_json() for group in groups],
                "processes": [each.to_json() for each in processes],
            }
        )
    else:
        _print(groups, says, threads=threads)
    if not processes or any(each.state != "answered" for each in processes):
        ctx.exit(EXIT_FOUND)


def _nobody(run: str) -> str:
    if has_ended(run):
        return "The training has ended; no process of it is left to ask."
    return (
        "No process of this run can be asked: it has died, runs without tdbg's "
        "profiler, or was started with an older tdbg."
    )


def _print(groups: Sequence[StackGroup], says: str, *, threads: bool) -> None:
    out = console()
    out.print(plain(says))
    for group in groups:
        out.print()
        out.print(plain(f"{group.sentence} [{_processes(group.processes)}]"))
        if not threads:
            _print_frames(out, group.frames)
            continue
        for process in group.processes:
            for thread in process.threads:
                name = "main thread" if thread.is_main else f"thread {thread.ident:#x}"
                of = f" of {process.name}" if len(group.processes) > 1 else ""
                out.print(plain(f"  {name}{of}"))
                _print_frames(out, thread.frames, "    ")


def _processes(processes: Sequence[ProcessStack]) -> str:
    """Write the process numbers, the phase and the step of a group."""
    pids = ", ".join(str(each.pid) for each in processes[:8])
    more = f" and {len(processes) - 8} more" if len(processes) > 8 else ""
    hosts = ", ".join(dict.fromkeys(each.host for each in processes[:8]))
    texts = [f"pid {pids}{more} on {hosts}"]
    phases = dict.fromkeys(
        each.phase.name.lower().replace("_", " ")
        for each in processes
        if each.phase is not None
    )
    if phases:
        texts.append(f"phase {', '.join(phases)}")
    steps = sorted({each.step for each in processes if each.step is not None})
    if steps:
        texts.append(
            f"step {steps[0]:,}"
            if len(steps) == 1
            else f"steps {steps[0]:,} to {steps[-1]:,}"
        )
    return "; ".join(texts)


def _print_frames(out: Console, frames: Sequence[Frame], indent: str = "  ") -> None:
    for frame in frames:
        out.print(plain(f"{indent}{frame.function}  {frame.file}:{frame.line}"))
