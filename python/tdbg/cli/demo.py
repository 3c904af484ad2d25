"""``tdbg demo``: the main job on real data, in about a minute."""

from __future__ import annotations

import time
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

if TYPE_CHECKING:
    from tdbg.demo.data import Digits
    from tdbg.demo.model import Configuration

__all__ = ["command"]


@click.command("demo")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the runs.")
@click.option("--steps", type=click.IntRange(min=20), default=400, show_default=True)
@options.as_json
def command(out: str | None, steps: int, as_json: bool) -> None:
    """Train a small network on handwritten digits, once well and once badly.

    Both trainings are captured, and a second process judges them while they run. The
    bad one is found out and stopped.
    """
    _require_demo_extra()
    import torch

    from tdbg.demo.data import load
    from tdbg.demo.model import OK, SICK

    folder = Path(out or f"runs/demo-{time.strftime('%Y%m%d-%H%M%S')}")
    digits = load()
    # One core for the training, so that the watcher has one too.
    torch.set_num_threads(1)
    # With --json standard output belongs to the document at the end.
    screen = console(stderr=as_json)
    screen.print(
        f"Data: {len(digits.train_labels)} real handwritten digits to learn, "
        f"{len(digits.test_labels)} to test."
    )
    _heading("1. A healthy training, watched by a second process", screen)
    healthy = _watched_training(OK, digits, folder / "healthy", steps, screen)
    _heading("2. A sick one: 14 layers of sigmoids", screen)
    sick = _watched_training(SICK, digits, folder / "sick", steps, screen)
    _heading("3. What was captured", screen)
    _show(folder / "healthy", screen)
    cost = _measure_cost(digits, folder / "cost", screen)
    _look_further(folder, screen)
    if as_json:
        emit_json({"healthy": healthy, "sick": sick, "cost": cost})


def _heading(text: str, screen: Console) -> None:
    screen.print(f"\n[bold]{text}[/bold]")


def _require_demo_extra() -> None:
    try:
        import sklearn  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        msg = f"the demo needs {error.name}: pip install 'tdbg[demo]'"
        raise click.UsageError(msg) from error


def _watched_training(
    configuration: Configuration,
    digits: Digits,
    run: Path,
    n_steps: int,
    screen: Console,
) -> dict[str, Any]:
    from tdbg.demo.training import train
    from tdbg.demo.watcher import Watcher
    from tdbg.pytorch import Hook, SaveConfig
    from tdbg.rules import default_rules

    hook = Hook(
        run,
        save_all=True,
        rules=default_rules(),
        save_config=SaveConfig(statistics_interval=1, save_interval=100),
    )
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(
            *columns, TextColumn("steps"), TimeElapsedColumn(), console=screen
        ) as bar,
        Watcher(run) as watcher,
    ):
        task = bar.add_task("training", total=n_steps)
        outcome = train(
            configuration,
            digits,
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
        "run": str(run),
        "steps": outcome.n_steps,
        "of": n_steps,
        "seconds": outcome.seconds,
        "accuracy": outcome.accuracy,
        "stopped": outcome.stopped,
        "saved": saved,
        "findings": watcher.findings,
        "cost": _own_cost(run),
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
    from tdbg.demo.model import OK
    from tdbg.trial import create_trial

    with screen.status("measuring what capture costs ..."):
        cost = measure(OK, digits, run)
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


def _look_further(folder: Path, screen: Console) -> None:
    _heading("Look further", screen)
    for verb, what in (
        (f"check {folder}/sick", "judge the run again, offline"),
        (f"show {folder}/sick gradient/conv1.weight", "the history of a tensor"),
        (f"ls {folder}", "all runs of the demo"),
        (f"fsck {folder}/healthy", "verify every checksum"),
    ):
        screen.print(f"  tdbg {verb:<56} [dim]{what}[/dim]", soft_wrap=True)
