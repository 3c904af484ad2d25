"""``tdbg demo``: the main job on real data, in about a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from tdbg.cli import options
from tdbg.cli.output import console, emit_json, n_bytes
from tdbg.cli.rule_options import print_findings
from tdbg.demo.frameworks import FRAMEWORKS, Training, train
from tdbg.rules import default_rules

if TYPE_CHECKING:
    from tdbg.demo.data import Digits
    from tdbg.demo.watcher import Watcher

__all__ = ["command"]


@click.command("demo")
@click.option(
    "--framework",
    type=click.Choice(sorted(FRAMEWORKS)),
    default="pytorch",
    show_default=True,
    help="The framework that trains.",
)
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the runs.")
@click.option(
    "--steps",
    type=click.IntRange(min=20),
    help="Most steps to train.  Default: 400, or 200 rounds of XGBoost.",
)
@options.as_json
def command(framework: str, out: str | None, steps: int | None, as_json: bool) -> None:
    """Train a small model on handwritten digits, once well and once badly.

    Both trainings are captured, and a second process judges them while they run. The
    bad one is detected and stopped.
    """
    chosen = FRAMEWORKS[framework]
    missing = chosen.missing()
    if missing is not None:
        extras = "demo" if chosen.extra == "demo" else f"demo,{chosen.extra}"
        msg = f"the demo needs {missing}: pip install 'tdbg[{extras}]'"
        raise click.UsageError(msg)
    from tdbg.demo.data import load
    from tdbg.demo.watcher import Watcher

    folder = Path(out or f"runs/demo-{time.strftime('%Y%m%d-%H%M%S')}")
    n_steps = steps or chosen.n_steps
    digits = load()
    # With --json standard output belongs to the document at the end.
    screen = console(stderr=as_json)
    screen.print(
        f"Data: {len(digits.train_labels)} real handwritten digits to learn, "
        f"{len(digits.test_labels)} to test."
    )
    trainings = chosen.trainings()

    def watched(name: str, *, is_sick: bool) -> dict[str, Any]:
        run = folder / name
        hook = trainings.make_hook(run, default_rules())
        training = trainings.Training(digits, hook, is_sick=is_sick)
        judging = partial(Watcher, run, chosen.stop_on)
        return {
            "run": str(run),
            **_watched_training(training, hook, judging, n_steps, screen),
            "cost": _own_cost(run),
        }

    _heading("1. A healthy training, watched by a second process", screen)
    document = {"healthy": watched("healthy", is_sick=False)}
    _heading(f"2. A sick one: {trainings.SICK}", screen)
    document["sick"] = watched("sick", is_sick=True)
    _heading("3. What was captured", screen)
    _show(folder / "healthy", screen)
    if chosen.note:
        screen.print(chosen.note)
    if chosen.is_measured:
        document["cost"] = _measure_cost(digits, folder / "cost", screen)
    _look_further(folder, trainings.LOOK_AT, screen)
    if as_json:
        emit_json(document)


def _heading(text: str, screen: Console) -> None:
    screen.print(f"\n[bold]{text}[/bold]")


def _watched_training(
    training: Training,
    hook: Any,
    judging: Callable[[], Watcher],
    n_steps: int,
    screen: Console,
) -> dict[str, Any]:
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(
            *columns, TextColumn("steps"), TimeElapsedColumn(), console=screen
        ) as bar,
        judging() as watcher,
    ):
        task = bar.add_task("training", total=n_steps)
        outcome = train(
            training,
            hook,
            n_steps,
            on_step=lambda done: bar.update(task, completed=done),
        )
    print_findings(watcher.findings, screen, live=True, how="tdbg check --all")
    saved = 1 - outcome.n_steps / n_steps
    if outcome.stopped:
        # None, where somebody else has asked for the stop.
        first = min((finding["step"] for finding in watcher.findings), default=None)
        found = "" if first is None else f"Found at step {first}; "
        screen.print(
            f"{found}stopped after {outcome.n_steps} of {n_steps} "
            f"steps: [bold]{saved:.0%} of the compute saved[/bold]."
        )
    else:
        screen.print(
            f"{outcome.n_steps} steps in {outcome.seconds:.1f} s, "
            f"[bold]accuracy {outcome.accuracy:.1%}[/bold], "
            f"findings: {len(watcher.findings) or 'none'}."
        )
    return {
        "steps": outcome.n_steps,
        "of": n_steps,
        "seconds": outcome.seconds,
        "accuracy": outcome.accuracy,
        "stopped": outcome.stopped,
        "saved": saved,
        "findings": watcher.findings,
    }


def _own_cost(run: Path) -> dict[str, Any]:
    from tdbg.trial import create_trial

    return create_trial(str(run)).overhead().to_json()


def _show(run: Path, screen: Console) -> None:
    from tdbg.cli.show import print_run
    from tdbg.trial import create_trial

    trial = create_trial(str(run))
    # What a layer puts in, another has put out.
    print_run(trial, trial.tensor_names(regex=r"^(?!.*_input_)"), out=screen)


def _measure_cost(digits: Digits, run: Path, screen: Console) -> dict[str, Any]:
    from tdbg.demo.cost import measure
    from tdbg.trial import create_trial

    with screen.status("measuring what capture costs ..."):
        cost = measure(digits, run)
    size = create_trial(str(run)).n_bytes
    screen.print(
        f"Statistics of every tensor at every step: a step takes "
        f"[bold]{cost.ratio:.3f}[/bold] times as long (quartiles {cost.low:.3f} to "
        f"{cost.high:.3f}, {cost.n_pairs} pairs, plain step {cost.plain_ms:.1f} ms); "
        f"{n_bytes(size)} on disk."
    )
    return {
        "ratio": cost.ratio,
        "low": cost.low,
        "high": cost.high,
        "plain_ms": cost.plain_ms,
        "pairs": cost.n_pairs,
        "bytes": size,
    }


def _look_further(folder: Path, tensor: str, screen: Console) -> None:
    _heading("Look further", screen)
    commands = (
        (f"check {folder}/sick", "judge the run again, offline"),
        (f"show {folder}/sick {tensor}", "the history of a tensor"),
        (f"ls {folder}", "all runs of the demo"),
        (f"fsck {folder}/healthy", "verify every checksum"),
        (f"ui {folder}", "look at them in the browser: every layer, every step"),
    )
    longest = max(len(verb) for verb, _ in commands)
    for verb, what in commands:
        screen.print(f"  tdbg {verb:<{longest}}  [dim]{what}[/dim]", soft_wrap=True)
