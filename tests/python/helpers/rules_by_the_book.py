"""What rules should say, computed the plain way from the formulas of their pages.

One row at a time, in Python, without windows: slow, and easy to hold against
docs/rules.  ``spied`` has the verdicts of the rule itself on every tensor and step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rules_fake import FakeRun
from tdbg.config import Needs
from tdbg.modes import ModeKeys
from tdbg.rules import (
    AllZero,
    Engine,
    Evaluation,
    ExplodingGradient,
    PrecisionLoss,
    Rule,
    TensorVariance,
    VanishingGradient,
    WeightUpdateRatio,
    Window,
    ZeroLearningRate,
)
from tdbg.rules.window import OK, UNKNOWN, TensorInfo
from tdbg.run.findings import Severity

__all__ = [
    "BOOKS",
    "ERROR",
    "INFO",
    "TRAINING",
    "WARNING",
    "Entry",
    "Row",
    "Verdicts",
    "entries",
    "median",
    "not_finite",
    "of_role",
    "spied",
]

TRAINING = (ModeKeys.TRAIN, ModeKeys.GLOBAL)
INFO, WARNING = int(Severity.INFO), int(Severity.WARNING)
ERROR = int(Severity.ERROR)

Row = dict[str, float]
Verdicts = dict[tuple[ModeKeys, str, int], int]


class Spy(Rule):
    """A rule that is asked in place of another, and remembers what that one said."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.verdicts: Verdicts = {}

    @property
    def needs(self) -> Needs | tuple[Needs, ...]:
        return self.rule.needs

    @property
    def lookback(self) -> int:
        return self.rule.lookback

    @property
    def head_rows(self) -> int:
        return self.rule.head_rows

    def selects(self, tensor: TensorInfo) -> bool:
        return self.rule.selects(tensor)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        for evaluation in self.rule.evaluate(window):
            for i, j in np.argwhere(evaluation.severities != UNKNOWN):
                level = int(evaluation.severities[i, j])
                key = evaluation.mode, evaluation.names[i], int(evaluation.steps[j])
                assert key not in self.verdicts, "judged twice"
                self.verdicts[key] = level
                if level > OK:
                    assert evaluation.describe(int(i), int(j)).message
            yield evaluation


def spied(run: FakeRun, rule: Rule, max_window: int | None = None) -> Verdicts:
    """All verdicts of a rule that are not unknown."""
    spy = Spy(rule)
    engine = Engine(run, [spy], max_window=max_window)
    engine.poll()
    (status,) = engine.report().statuses
    assert not status.message, status.message
    return spy.verdicts


@dataclass(frozen=True)
class Entry:
    """A step as it was recorded."""

    step: int
    usable: bool
    skipped: bool
    rows: dict[str, Row]


def entries(run: FakeRun, mode: ModeKeys) -> list[Entry]:
    """The steps of one mode."""
    return [
        Entry(
            step,
            complete and lossless,
            skipped,
            {n: t.rows[step] for n, t in run.tensors.items() if step in t.rows},
        )
        for step, (of, complete, lossless, skipped, _) in sorted(run.steps.items())
        if of is mode
    ]


def lasting(
    run: FakeRun,
    judge: Callable[[Entry, str], bool | None],
    names: Sequence[str],
    patience: int,
    severity: int,
    modes: Sequence[ModeKeys] = TRAINING,
    steps: int = 10,
) -> Verdicts:
    """Verdicts on what must hold at several recorded steps in a row.

    Args:
        run: The run.
        judge: Of a row that is there without loss: whether it is bad; None: unknown.
        names: The tensors.
        patience: How many rows in a row.
        severity: From then on.
        modes: Each judged by itself.
        steps: For how many steps, if it is for several rows.
    """
    result: Verdicts = {}
    for mode in modes:
        streaks: Counter[str] = Counter()
        since: dict[str, int] = {}
        for entry in entries(run, mode):
            for name in names:
                there = name in entry.rows
                bad = judge(entry, name) if there and entry.usable else None
                if not there and entry.usable and not entry.skipped:
                    continue
                streaks[name] = streaks[name] + 1 if bad else 0
                if streaks[name] == 1:
                    since[name] = entry.step
                if bad is False:
                    result[mode, name, entry.step] = OK
                elif streaks[name] >= patience and (
                    patience == 1 or entry.step - since[name] + 1 >= steps
                ):
                    result[mode, name, entry.step] = severity
    return result


def median(values: Sequence[float]) -> float:
    """Of those that are numbers."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return math.nan
    half = len(known) // 2
    return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2


def not_finite(row: Row) -> float:
    return row["nan"] + row["positive_infinity"] + row["negative_infinity"]


def of_role(run: FakeRun, *roles: str) -> list[str]:
    return [name for name, tensor in run.tensors.items() if tensor.role in roles]


def all_zero(rule: AllZero, run: FakeRun) -> Verdicts:
    def bad(entry: Entry, name: str) -> bool | None:
        row = entry.rows[name]
        if row["count"] < rule.min_count:
            return None
        return row["zero"] / row["count"] >= rule.threshold / 100

    return lasting(run, bad, of_role(run, "output"), rule.patience, WARNING)


def tensor_variance(rule: TensorVariance, run: FakeRun) -> Verdicts:
    def bad(entry: Entry, name: str) -> bool | None:
        row = entry.rows[name]
        if row["count"] < rule.min_count or not_finite(row):
            return None
        variance, square = row["m2"] / row["count"], row["l2"] ** 2 / row["count"]
        assert rule.relative is not None
        small = square > 0 and variance < rule.relative**2 * square
        low = rule.min_threshold is not None and variance < rule.min_threshold
        high = rule.max_threshold is not None and variance > rule.max_threshold
        return small or low or high

    return lasting(run, bad, of_role(run, "output"), rule.patience, WARNING)


def vanishing(rule: VanishingGradient, run: FakeRun) -> Verdicts:
    def mean(row: Row) -> float:
        used = row["count"] - row["zero"]
        return row["l1"] / used if used else 0.0

    def bad(entry: Entry, name: str) -> bool | None:
        if entry.skipped or not_finite(entry.rows[name]):
            return None
        sound = [row for row in entry.rows.values() if not not_finite(row)]
        largest = max(map(mean, sound))
        assert rule.relative is not None
        own = mean(entry.rows[name])
        return own < rule.threshold and own < rule.relative * largest

    names = of_role(run, "gradient")
    result = lasting(run, bad, names, rule.patience, ERROR, tuple(ModeKeys))
    for mode in ModeKeys:
        for entry in entries(run, mode):
            # Sound ones are known, and not bad.
            sound = {n for n in entry.rows if n in names and bad(entry, n) is False}
            for i, name in enumerate(names):
                is_alone = i > 0 and names[i - 1] in sound
                is_alone &= i + 1 == len(names) or names[i + 1] in sound
                is_bad = result.get((mode, name, entry.step)) == ERROR
                if is_bad and mean(entry.rows[name]) == 0:
                    is_idle = any(
                        mean(entry.rows[each]) > 0
                        for each in names[:i]
                        if each in entry.rows and bad(entry, each) is not None
                    )
                    result[mode, name, entry.step] = INFO if is_idle else WARNING
                elif is_bad and is_alone:
                    result[mode, name, entry.step] = INFO
    return result


def updates_lost(rule: PrecisionLoss, run: FakeRun) -> Verdicts:
    def bad(entry: Entry, name: str) -> bool | None:
        update = entry.rows.get(f"update/{name}")
        gradient = entry.rows.get(f"gradient/{name}")
        if update is None or gradient is None or entry.skipped or not_finite(gradient):
            return None
        trained = gradient["count"] - gradient["zero"]
        kept = update["count"] - update["zero"]
        if not trained:
            return None
        return 100 * (1 - kept / trained) >= rule.update_threshold

    names = [n for n in of_role(run, "weight") if run.tensors[n].dtype == "bfloat16"]
    return lasting(run, bad, names, rule.patience, WARNING, steps=20)


def update_ratio(rule: WeightUpdateRatio, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    names = of_role(run, "weight")
    for mode in TRAINING:
        streaks: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        began: dict[str, tuple[int, float]] = {}
        initial: dict[str, float] = {}
        for entry in entries(run, mode):
            ratios = {}
            for name in names:
                weight = entry.rows.get(name)
                update = entry.rows.get(f"update/{name}")
                seen[name] += weight is not None
                if weight is not None:
                    initial.setdefault(name, weight["l2"])
                sound = entry.usable and not entry.skipped
                if weight is None:
                    streaks[name] *= sound
                elif not (sound and update and _are_sizes(weight, update)):
                    streaks[name] = 0
                else:
                    ratios[name] = update["l2"] / weight["l2"]
            middle = median(list(ratios.values()))
            found, replaced = [], []
            for name, ratio in ratios.items():
                row = entry.rows[name]
                grown = row["l2"] > (1 + rule.large_threshold) * initial[name] > 0
                root = row["l2"] / math.sqrt(row["count"])
                large = ratio > rule.large_threshold and root >= rule.min_weight
                slow = middle < rule.small_threshold and seen[name] <= rule.until
                small = ratio < rule.small_threshold
                small &= slow or ratio < rule.relative * middle
                streaks[name] = streaks[name] + 1 if small else 0
                if streaks[name] == 1:
                    began[name] = entry.step, ratio
                since, first = began.get(name, (0, 0.0))
                enough = 40 if ratio > 1.5 * first else 10
                lasts = rule.patience == 1 or entry.step - since + 1 >= enough
                if large or (streaks[name] >= rule.patience and lasts):
                    found.append(name)
                    replaced += [name] * large
                elif not small and not grown:
                    result[mode, name, entry.step] = OK
            if found:
                # One finding for all of them.
                early = found[0] in replaced and seen[found[0]] <= 3
                most = len(replaced) > max(1, len(ratios) / 2)
                level = ERROR if early and most else WARNING
                result[mode, found[0], entry.step] = level
    return result


def _are_sizes(*rows: Row) -> bool:
    """Whether all are finite, and none is zero throughout."""
    return not any(map(not_finite, rows)) and all(row["l2"] for row in rows)


def exploding(rule: ExplodingGradient, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    names = of_role(run, "gradient")
    for mode in TRAINING:
        last: dict[str, list[float]] = {name: [] for name in names}
        first: dict[str, list[float]] = {name: [] for name in names}
        totals: list[float] = []
        for entry in entries(run, mode):
            norms: dict[str, float] = {}
            growth: dict[str, tuple[float, float]] = {}
            for name in [name for name in names if name in entry.rows]:
                row = entry.rows[name]
                sound = entry.usable and not entry.skipped and not not_finite(row)
                norm = row["l2"] if sound else math.nan
                past = last[name][-rule.window :]
                if sound:
                    norms[name] = norm
                    found = _growth(rule, norm, past, first[name])
                    if found is not None:
                        growth[name] = found
                if len(first[name]) < rule.window:
                    first[name].append(norm)
                if entry.usable:
                    last[name].append(norm)
            total = sum(norm**2 for norm in norms.values())
            carried = sum(norms[name] ** 2 for name in growth)
            worst = None
            before = totals[-rule.window :]
            is_usual = (
                len(before) >= rule.min_rows
                and math.sqrt(total) <= rule.first_factor * median(before)
                and max(norms.values(), default=0.0) <= 1e18
            )
            totals += [math.sqrt(total)] if norms else []
            if growth and carried >= total / 2 and not is_usual:
                worst = max(growth, key=lambda name: growth[name][0])
                severe = growth[worst][1] > rule.error_factor
                result[mode, worst, entry.step] = ERROR if severe else WARNING
            for name in norms:
                if name not in growth:
                    result[mode, name, entry.step] = OK
    return result


def _growth(
    rule: ExplodingGradient, norm: float, past: list[float], early: list[float]
) -> tuple[float, float] | None:
    """By how much it has grown, and by how much at least; None: it has not."""
    if norm > 1e18:
        return math.inf, math.inf
    usual, first = median(past), median(early)
    sound = [each for each in past if not math.isnan(each)]
    if len(sound) < rule.min_rows:
        highest = max(sound, default=0.0)
        if highest > 0 and norm > rule.error_factor * highest:
            return norm / highest, 0.0  # However much it is: a warning.
        return None
    if not usual > 0 or not first > 0:
        return None
    logs = [math.log(each) for each in past if each > 0]
    spread = median([abs(each - math.log(usual)) for each in logs])
    noise = math.exp(rule.deviations * 1.4826 * spread)
    opening = median(early[: rule.min_rows])
    at_first = first if math.isnan(opening) else max(first, opening)
    if norm > max(usual * max(rule.factor, noise), at_first * rule.first_factor):
        return norm / usual, min(norm / usual, norm / first)
    return None


def zero_rate(rule: ZeroLearningRate, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    names = list(run.tensors)
    for mode in TRAINING:
        streaks: Counter[str] = Counter()
        since: dict[str, int] = {}
        for entry in entries(run, mode):
            if not entry.usable:
                continue
            rates = {name: row["mean"] for name, row in entry.rows.items()}
            for name in [name for name in names if name in rates]:
                zero = rates[name] == 0
                streaks[name] = streaks[name] + 1 if zero else 0
                if streaks[name] == 1:
                    since[name] = entry.step
                lasted = entry.step - since.get(name, 0) + 1
                if not zero:
                    result[mode, name, entry.step] = OK
                elif streaks[name] >= rule.patience and lasted >= 10:
                    severe = streaks[name] >= rule.error_patience and lasted >= 190
                    severe &= not any(rates.values())
                    result[mode, name, entry.step] = ERROR if severe else WARNING
    return result


BOOKS: dict[type[Rule], Callable[[Any, FakeRun], Verdicts]] = {
    AllZero: all_zero,
    TensorVariance: tensor_variance,
    VanishingGradient: vanishing,
    PrecisionLoss: updates_lost,
    WeightUpdateRatio: update_ratio,
    ExplodingGradient: exploding,
    ZeroLearningRate: zero_rate,
}
