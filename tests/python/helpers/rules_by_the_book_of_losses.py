"""What rules about losses should say, computed the plain way.

As ``rules_by_the_book`` does for those of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rules_by_the_book import (
    INFO,
    TRAINING,
    WARNING,
    Entry,
    Verdicts,
    entries,
    median,
    not_finite,
    of_role,
)
from rules_fake import FakeRun
from tdbg.modes import ModeKeys
from tdbg.rules import LossNotDecreasing, LossSpike, Rule, Underfitting
from tdbg.rules.window import OK

__all__ = ["BOOKS_OF_LOSSES"]

MAD_TO_DEVIATION = 1.4826


def losses(
    run: FakeRun, name: str, mode: ModeKeys
) -> tuple[list[tuple[Entry, float]], Callable[[int], float]]:
    """Losses of steps without loss, NaN where not finite; the median of first ones."""
    rows = [entry for entry in entries(run, mode) if name in entry.rows]

    def value(entry: Entry) -> float:
        row = entry.rows[name]
        return math.nan if not_finite(row) else row["mean"]

    def start(n: int) -> float:
        return median([value(entry) for entry in rows[:n] if entry.usable])

    return [(entry, value(entry)) for entry in rows if entry.usable], start


def middle_of(values: list[float]) -> float:
    """The median; NaN where anything is."""
    return math.nan if any(map(math.isnan, values)) else median(values)


def spike(rule: LossSpike, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    for mode in TRAINING:
        for name in of_role(run, "loss"):
            known, start_of = losses(run, name, mode)
            start, streak = start_of(10), 0
            early_steps = {
                entry.step
                for entry in [e for e in entries(run, mode) if name in e.rows][:10]
            }
            first = [value for entry, value in known if entry.step in early_steps]
            for k, (entry, loss) in enumerate(known):
                before = [value for _, value in known[k - rule.num_steps : k]]
                middle = middle_of(before) if k >= rule.num_steps else math.nan
                if math.isnan(middle) or math.isnan(loss):
                    streak = 0
                    continue
                spread = median([abs(value - middle) for value in before])
                limit = max(
                    rule.deviations * MAD_TO_DEVIATION * spread,
                    rule.of_way * (start - middle),
                    rule.of_level * abs(middle),
                )
                early = known[: k + 1 - rule.patience][-rule.num_steps :]
                tails = rule.of_tails * float(np.std([value for _, value in early]))
                streak = streak + 1 if loss - middle > limit else 0
                highest = float(np.max([0.0, *first, *before]))
                if not streak:
                    result[mode, name, entry.step] = OK
                elif (streak >= rule.patience and loss - middle > tails) or (
                    0 < highest < loss / rule.at_once
                ):
                    is_worse = loss > float(np.fmax.reduce(first, initial=-np.inf))
                    result[mode, name, entry.step] = WARNING if is_worse else INFO
    return result


# A step, the medians of the two windows up to it, the error of what they differ.
Trend = tuple[Entry, float, float, float]


def trends(run: FakeRun, name: str, mode: ModeKeys, n: int) -> Iterator[Trend]:
    """Medians of the last two windows of each step; the error of what they differ."""
    known, _ = losses(run, name, mode)
    for k, (entry, _) in enumerate(known):
        if k + 1 < 2 * n:
            yield entry, math.nan, math.nan, math.nan
            continue
        values = [value for _, value in known[k + 1 - 2 * n : k + 1]]
        parts = values[:n], values[n:]
        before, now = map(middle_of, parts)
        yield entry, before, now, math.hypot(*map(error_of, parts))


def error_of(values: list[float]) -> float:
    """The standard error of the median."""
    middle = middle_of(values)
    deviation = MAD_TO_DEVIATION * middle_of([abs(v - middle) for v in values])
    return max(1.2533 * deviation / math.sqrt(len(values)), half_of_distance(values))


def half_of_distance(values: list[float]) -> float:
    """Of the values that are half of sqrt(n) places away from the median."""
    if any(map(math.isnan, values)):
        return math.nan
    low = max(0, math.floor((len(values) - 1 - math.sqrt(len(values))) / 2))
    return (sorted(values)[-1 - low] - sorted(values)[low]) / 2


def not_decreasing(rule: LossNotDecreasing, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    for mode in TRAINING:
        for name in of_role(run, "loss"):
            start = losses(run, name, mode)[1](min(rule.window, 10))
            risen, n = rises(run, name, mode), rule.window
            fell = falls(run, name, mode, n)
            begun = starts_over(run, name, mode, 2 * n)
            halves = trends(run, name, mode, n // 2)
            for whole, half in zip(trends(run, name, mode, n), halves, strict=True):
                step = whole[0].step

                _, before, now, error = half
                near = now > start - 0.1 * abs(start)
                requested = rule.fall_percent / 200 * abs(before)
                early = (
                    math.isnan(whole[2])
                    and n // 2 >= 10
                    and near
                    and before - now + 3.5 * error < requested
                )
                # Short windows acquit, too, until two long ones are full.
                is_short = math.isnan(whole[2]) and n // 2 >= 10
                _, before, now, error = half if is_short else whole
                fall, requested = before - now, rule.fall_percent / 100 * abs(before)
                learned = now <= start - rule.learned_percent / 100 * abs(start)
                if learned or (fall >= requested and fall > 2 * error):
                    result[mode, name, step] = OK
                    continue
                _, before, now, error = whole
                fall, requested = before - now, rule.fall_percent / 100 * abs(before)
                near = now > start - 0.1 * abs(start)
                sure = 2 if near and step not in fell else 4
                is_found = fall + sure * error < requested or early or step in risen
                if is_found and step not in begun:
                    result[mode, name, step] = WARNING
    return result


def rises(run: FakeRun, name: str, mode: ModeKeys) -> set[int]:
    """Steps at which each of the last ten losses is above each of the first ten."""
    present = [entry for entry in entries(run, mode) if name in entry.rows]
    known, _ = losses(run, name, mode)
    early = {entry.step for entry in present[:10]}
    first = [value for entry, value in known if entry.step in early]
    later = [(entry, value) for entry, value in known if entry.step not in early]
    if len(first) < 10 or any(map(math.isnan, first)):
        return set()
    found = set()
    for k in range(9, len(later)):
        last = [value for _, value in later[k - 9 : k + 1]]
        above = all(value > max(first) for value in last)
        if above and median(last) - median(first) > 0.1 * abs(median(first)):
            found.add(later[k][0].step)
    return found


def falls(run: FakeRun, name: str, mode: ModeKeys, n: int) -> set[int]:
    """Steps at which the loss is surely below its first n values, or was before."""
    present = [entry for entry in entries(run, mode) if name in entry.rows]
    known, _ = losses(run, name, mode)
    early = {entry.step for entry in present[:n]}
    first = [value for entry, value in known if entry.step in early]
    if len(first) < n:
        return set()
    origin, of_origin = middle_of(first), error_of(first)
    found = set()
    for k in range(2 * n - 1, len(known)):
        both = [value for _, value in known[k + 1 - 2 * n : k + 1]]
        for part in (both, both[:n]):
            error = math.hypot(of_origin, error_of(part))
            if origin - middle_of(part) > 2 * error:
                found.add(known[k][0].step)
    return found


def starts_over(run: FakeRun, name: str, mode: ModeKeys, n: int) -> set[int]:
    """Steps at which the loss has jumped back to its start lately, and falls again."""
    known, start_of = losses(run, name, mode)
    start, found = start_of(10), set()
    back = 0.1 * abs(start)
    for k, (entry, _) in enumerate(known):
        values = [value for _, value in known[max(0, k + 1 - n) : k + 1]]
        jumps = [
            j
            for j in range(5, len(values) - 2)
            if max(values[j - 5 : j]) < start - 0.25 * abs(start)
            and min(values[j : j + 3]) > start - back
        ]
        if jumps:
            since = values[jumps[-1] :]
            if len(since) < 25 or median(since[-10:]) < median(since[:3]) - back:
                found.add(entry.step)
    return found


def underfitting(rule: Underfitting, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    for mode in TRAINING:
        for name in of_role(run, "loss"):
            start = losses(run, name, mode)[1](min(rule.num_steps, 10))
            limit = start - rule.learned_percent / 100 * abs(start)
            evaluated, _ = losses(run, name, ModeKeys.EVAL)
            for entry, before, now, error in trends(run, name, mode, rule.num_steps):
                past = [value for e, value in evaluated if e.step < entry.step]
                held = median(past[-rule.num_steps :])
                flat = rule.flat_percent / 100 * abs(before)
                fall = before - now
                if math.isnan(now):
                    continue
                if fall > flat or now <= limit or held <= limit:
                    result[mode, name, entry.step] = OK
                elif entry.step in starts_over(run, name, mode, 2 * rule.num_steps):
                    continue
                elif fall + 2 * error < flat and -fall < flat + 2 * error:
                    result[mode, name, entry.step] = WARNING
    return result


BOOKS_OF_LOSSES: dict[type[Rule], Callable[[Any, FakeRun], Verdicts]] = {
    LossSpike: spike,
    LossNotDecreasing: not_decreasing,
    Underfitting: underfitting,
}
