"""Runs cases by themselves, without tdbg: does each do what it says?

    python -m benchmarks.detection verify [--only rare,raw] [--seeds 5] [--jobs 2]

A sick training must come to a step at which its predicate holds; its twin and all
healthy trainings never, and these must reach what a healthy training must.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.detection.kit.case import Case, case_named, load
from benchmarks.detection.kit.training import Hooks, Observer, Outcome, Training

__all__ = ["Verdict", "run", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one case with one seed."""

    name: str
    seed: int
    outcome: Outcome
    trouble: str

    @property
    def line(self) -> str:
        """All of it in a line."""
        figures = "  ".join(f"{k} {v:.4g}" for k, v in self.outcome.figures.items())
        at = "-" if self.outcome.visible_at is None else self.outcome.visible_at
        return (
            f"{self.name:38} seed {self.seed}  {self.outcome.n_steps:4} steps  "
            f"visible {at!s:>4}  {self.outcome.seconds:5.1f} s  {figures}"
            + (f"  <-- {self.trouble}" if self.trouble else "")
        )


def run(
    case: Case,
    seed: int,
    observer: Observer | None = None,
    hooks: Hooks | None = None,
) -> Outcome:
    """Run a case in this process."""
    torch.set_num_threads(1)
    training = Training(sick=case.is_sick, seed=seed, observer=observer, hooks=hooks)
    began = time.perf_counter()
    case.program(training)
    training.outcome.seconds = time.perf_counter() - began
    return training.outcome


def trouble(case: Case, outcome: Outcome) -> str:
    """What is wrong with a case that ran like this, or nothing."""
    if case.is_sick:
        return "" if outcome.visible_at is not None else "never visible"
    if outcome.visible_at is not None:
        return f"visible at step {outcome.visible_at}, though healthy"
    if outcome.learned is None:
        return "does not say what a healthy training must reach"
    return "" if outcome.learned else "healthy, but has not learned"


def verify(
    chosen: Iterable[Case], seeds: Iterable[int], jobs: int, paths: Iterable[str] = ()
) -> Iterator[Verdict]:
    """Run these cases, each with these seeds, and yield what became of them."""
    work = [(case.name, seed) for case in chosen for seed in seeds]
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, load, (tuple(paths),)) as pool:
        yield from pool.imap(_verify, work)


def _verify(work: tuple[str, int]) -> Verdict:
    name, seed = work
    case = case_named(name)
    try:
        outcome = run(case, seed)
    except Exception as error:  # The rest is to be verified all the same.
        wrong = f"{type(error).__name__}: {error}"
        return Verdict(name=name, seed=seed, outcome=Outcome(), trouble=wrong)
    return Verdict(
        name=name, seed=seed, outcome=outcome, trouble=trouble(case, outcome)
    )
