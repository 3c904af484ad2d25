"""One save and one step without, in turn; what any save interval costs follows.

Three equal trainings do two steps each in a round, in random order.  The watched one
saves at the first of them, and its step lasts until everything is in the page cache:
with an interval of ``k``, a save comes with ``k - 1`` steps without.  The plain step is
the mean of the four of the same round, so that a machine whose speed drifts changes
all of a ratio alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks._harness import (
    CONTROL,
    Curves,
    Measured,
    Ratio,
    Report,
    Samples,
    Table,
    interleave,
)

__all__ = ["FEWEST", "INTERVALS", "Figure", "Line", "clocks", "measure", "report"]

INTERVALS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
#: The schedule of the watched training: a save, a step without, and so on.
EVERY = 2
FEWEST = 6

#: Wall time, and processor time of all threads.
Clocks = tuple[float, float]
#: Does a step and returns its loss, and when it began and ended.
Step = Callable[[], tuple[float, Clocks, Clocks]]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes:
        name: Of the result.
        title: What is trained.
        paper: What the paper measured, on its GPUs: by line, by interval.
        note: What to know of both.
    """

    name: str
    title: str
    paper: Mapping[str, Mapping[int, str]]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a figure: what is captured, and what that cost."""

    what: str
    samples: Samples
    megabytes: float


def clocks() -> Clocks:
    return time.perf_counter(), time.process_time()


def measure(
    steps: Mapping[str, Step],
    given: argparse.Namespace,
    verify: Callable[[Mapping[str, Any]], None],
) -> Samples:
    """Let ``plain``, ``control`` and ``watched`` take turns.

    Args:
        steps: By name; the next step of the watched one is a save.
        given: Of ``options()`` and ``--seconds``.
        verify: Checks the losses of a round.
    """
    return interleave(
        {name: _pair(step) for name, step in steps.items()},
        baseline="plain",
        rounds=given.rounds or (3 if given.quick else 400),
        seed=given.seed,
        at_most_seconds=given.seconds,
        verify=verify,
    )


def _pair(step: Step) -> Callable[[], Measured]:
    def run() -> Measured:
        losses, also = [], {}
        for what in ("save", "other"):
            loss, before, after = step()
            losses.append(loss)
            for clock, began, ended in zip(
                ("wall", "processor"), before, after, strict=True
            ):
                also[f"{what} {clock}"] = ended - began
        return Measured(also["save wall"] + also["other wall"], losses, also)

    return run


def at_interval(samples: Samples, interval: int, clock: str) -> Ratio:
    """The slowdown of a training that saves at every *interval* steps."""
    also = samples.also
    watched, values = also["watched"], []
    for i in range(len(watched[f"save {clock}"])):
        plain = sum(
            also[name][f"{what} {clock}"][i]
            for name in ("plain", CONTROL)
            for what in ("save", "other")
        )
        saved, other = (watched[f"{what} {clock}"][i] for what in ("save", "other"))
        values.append((saved + (interval - 1) * other) / (interval * plain / 4))
    return Ratio.of(values)


def report(figure: Figure, lines: Sequence[Line], given: Any, device: str) -> Report:
    """The figure as a table and as curves."""
    title = f"Save interval: {figure.title}, {device}"
    columns = ["save interval"]
    for line in lines:
        columns += [line.what, f"{line.what}, processor time", "the paper"]
    table = Table(title, columns)
    curves = Curves(
        f"paper_{figure.name}",
        title,
        "steps from save to save",
        "step / plain step",
        log_x=True,
    )
    for interval in INTERVALS:
        cells = []
        for line in lines:
            wall = at_interval(line.samples, interval, "wall")
            cells += [str(wall), str(at_interval(line.samples, interval, "processor"))]
            cells.append(figure.paper.get(line.what, {}).get(interval, ""))
            curves.add(line.what, interval, wall.median, wall.low, wall.high)
        table.add(f"{interval}", *cells)
    table.add("plain / plain", *(cell for line in lines for cell in _controls(line)))
    saves = "; ".join(f"{line.what}: {line.megabytes:.3g} MB a save" for line in lines)
    step = 1e3 * lines[0].samples.seconds_of("plain") / 2
    table.note = (
        f"A plain step takes {step:.0f} ms; {saves}. Step / plain step, medians of "
        f"{lines[0].samples.ratio('watched').n} rounds with their 95 % intervals; "
        f"processor time is that of all threads. {figure.note}"
    )
    return Report(
        f"save_interval/{figure.name}_{device}",
        given,
        packages=("torch", "keras", "tensorflow", "numpy", "tdbg"),
        tables=[table],
        plots=[curves],
        data={line.what: line.samples.to_json() for line in lines},
    )


def _controls(line: Line) -> list[str]:
    """Plain beside plain: the noise."""
    found = []
    for clock in ("wall", "processor"):
        control, plain = (_seconds(line, name, clock) for name in (CONTROL, "plain"))
        found.append(
            str(Ratio.of([a / b for a, b in zip(control, plain, strict=True)]))
        )
    return [*found, ""]


def _seconds(line: Line, name: str, clock: str) -> list[float]:
    """Of both steps of each round."""
    also = line.samples.also[name]
    parts = zip(also[f"save {clock}"], also[f"other {clock}"], strict=True)
    return [sum(each) for each in parts]
