"""What rules about classifiers should say, computed the plain way.

As ``rules_by_the_book`` does for those of tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rules_by_the_book import WARNING, Verdicts, entries
from rules_fake import FakeRun
from tdbg.modes import ModeKeys
from tdbg.rules import ClassImbalance, Confusion, Rule
from tdbg.rules.window import OK
from tdbg.run.findings import Severity

__all__ = ["BOOKS_OF_CLASSES", "LABELS", "SCORES", "at_least"]

LABELS, SCORES = "CrossEntropyLoss_input_1", "CrossEntropyLoss_input_0"

# Stands for all classes.
ALL = -1
# Of each sample its class, and the one that it was taken for.
Samples = list[tuple[int, int]]


def batches(run: FakeRun, mode: ModeKeys) -> list[tuple[int, Samples | None, int]]:
    """Steps, their samples (None: no values), and how many classes there are."""
    labels, scores = run.tensors[LABELS].values, run.tensors[SCORES].values
    found: list[tuple[int, Samples | None, int]] = []
    for entry in entries(run, mode):
        if entry.usable and LABELS in entry.rows:
            samples, n_classes = None, 0
            if entry.step in labels:
                of = scores[entry.step]
                pairs = zip(labels[entry.step].tolist(), of.tolist(), strict=True)
                samples = [(c, row.index(max(row))) for c, row in pairs if c != -100]
                n_classes = of.shape[1]
            found.append((entry.step, samples, n_classes))
    return found


def stretches(
    rule: ClassImbalance | Confusion, run: FakeRun, mode: ModeKeys
) -> list[tuple[int, int, Samples, Samples | None]]:
    """Steps, numbers of classes, their last samples, and as many of half the way.

    Of steps at which there are enough.  What was 30 steps ago or more counts as half
    the way.
    """
    result = []
    start = next(
        (entry.step for entry in entries(run, mode) if LABELS in entry.rows), 0
    )
    every = batches(run, mode)
    for k, (step, samples, n_classes) in enumerate(every):
        if samples is None:
            continue
        requested = max(rule.samples, rule.samples_per_class * n_classes)
        seen = every[max(0, k + 1 - rule.max_steps) : k + 1][::-1]
        known = [(at, each) for at, each, _ in seen if each is not None]
        now, rest = take(known, requested)
        if now is None or n_classes > rule.max_classes:
            continue
        half = [(at, each) for at, each in rest if at <= (start + step) // 2]
        before, _ = take(half, requested)
        at = half[0][0] if half else step
        if before is None and len(seen) == rule.max_steps:
            before, others = take(rest[::-1], requested)
            at = rest[len(others)][0] if len(others) < len(rest) else step
        if step - at < 30:
            before = None
        result.append((step, n_classes, now, before))
    return result


def short_stretches(
    rule: ClassImbalance, run: FakeRun, mode: ModeKeys
) -> list[tuple[int, int, list[Samples]]]:
    """Steps with too few samples up to them, numbers of classes, and all batches."""
    result = []
    every = batches(run, mode)
    for k, (step, samples, n_classes) in enumerate(every):
        if samples is None or n_classes > rule.max_classes:
            continue
        seen = [each for _, each, _ in every[max(0, k + 1 - rule.max_steps) : k + 1]]
        known = [each for each in seen if each is not None]
        requested = max(rule.samples, rule.samples_per_class * n_classes)
        if sum(map(len, known)) < requested:
            result.append((step, n_classes, known))
    return result


def later_samples(
    rule: ClassImbalance, run: FakeRun, mode: ModeKeys
) -> dict[int, tuple[dict[int, int], Samples]]:
    """Of each step, how long each class was there, and samples after its first quarter.

    Of batches of evaluation with the same labels, the newest one counts.
    """
    start = next(
        (entry.step for entry in entries(run, mode) if LABELS in entry.rows), 0
    )
    every = batches(run, mode)
    result: dict[int, tuple[dict[int, int], Samples]] = {}
    for k, (step, _, _) in enumerate(every):
        age = step - start
        seen = every[max(0, k + 1 - rule.max_steps) : k + 1]
        parts = [
            each for at, each, _ in seen if each is not None and at > start + age // 4
        ]
        if mode is ModeKeys.EVAL:
            newest = {tuple(label for label, _ in part): part for part in parts}
            parts = list(newest.values())
        ages = {ALL: age}
        for at, each, _ in reversed(seen):
            ages |= dict.fromkeys({label for label, _ in each or ()}, step - at)
        result[step] = ages, [pair for part in parts for pair in part]
    return result


def level_of_rare(
    rule: ClassImbalance,
    now: Samples,
    later: Samples,
    age: dict[int, int],
    n_classes: int,
    before: Samples | None,
) -> int:
    """An info, a warning where the model surely misses a rare class, or nothing."""
    least = 1 - rule.threshold_misprediction

    def are_rare(samples: Samples) -> set[int]:
        counts = Counter(label for label, _ in samples)
        most = max(counts.values(), default=0)
        return {
            label
            for label in range(n_classes)
            if most + 1 > rule.threshold_imbalance * (counts[label] + 1)
        }

    level = OK
    for label in are_rare(now) & are_rare(later):
        own, own_now = of_class(later, label), of_class(now, label)
        right = sum(label == said for label, said in own)
        right_now = sum(label == said for label, said in own_now)
        others = [pair for pair in now if pair[0] != label]
        if (
            1 - at_least(len(own) - right, len(own)) < least
            and right_now <= least * len(own_now)
            and share(others) >= rule.learned
            and age.get(label, -1) >= 100
            and not (before is not None and gets_better(now, before))
        ):
            return WARNING
        if not own or right <= least * len(own):
            level = int(Severity.INFO)
    return level


def surely_rare(rule: ClassImbalance, parts: list[Samples], n_classes: int) -> bool:
    """By the exact probability of so few samples if the ratio were just allowed."""
    counts = Counter(label for part in parts for label, _ in part)
    sizes = [counts[label] for label in range(n_classes)]
    if len(counts) < 2:
        return False
    few, n = min(sizes), min(sizes) + max(sizes)
    p = 1 / (rule.threshold_imbalance + 1)
    chance = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(few + 1))
    n_pairs = n_classes * (n_classes - 1)
    return chance < 0.001 / n_pairs / (len(parts) * (len(parts) + 1))


def take(
    parts: list[tuple[int, Samples]], requested: int
) -> tuple[Samples | None, list[tuple[int, Samples]]]:
    """Samples of the first batches that hold enough, and the other batches."""
    samples: Samples = []
    for i, (_, each) in enumerate(parts):
        samples += each
        if len(samples) >= requested:
            return samples, parts[i + 1 :]
    return None, []


def share(samples: Sequence[tuple[int, int]]) -> float:
    """Of right predictions."""
    return sum(c == said for c, said in samples) / max(1, len(samples))


def of_class(samples: Samples, requested: int) -> Samples:
    return [pair for pair in samples if pair[0] == requested]


def gets_better(now: Samples, before: Samples, label: int | None = None) -> bool:
    if label is None:
        return share(now) - share(before) > 0.05
    return share(of_class(now, label)) - share(of_class(before, label)) > 0.1


def imbalance(rule: ClassImbalance, run: FakeRun) -> Verdicts:
    def not_learned(samples: Samples, label: int) -> bool:
        own = of_class(samples, label)
        others = [pair for pair in samples if pair[0] != label]
        return (
            len({label for label, _ in samples}) > 2
            and len(own) >= rule.samples_per_class
            and share(others) >= rule.learned
            and 1 - share(own) > rule.threshold_misprediction
        )

    result: Verdicts = {}
    for mode in ModeKeys:
        later = later_samples(rule, run, mode)
        for step, n, now, before in stretches(rule, run, mode):
            counts = Counter(label for label, _ in now)
            age, samples = later[step]
            level = level_of_rare(rule, now, samples, age, n, before)
            sizes = [counts[label] + 1 for label in range(n)]
            rare = {
                label
                for label in range(n)
                if max(sizes) > rule.threshold_imbalance * sizes[label]
            }
            if len(counts) == 1:
                # Of a constant it is asked only whether a constant answers it.
                always = age[ALL] >= 100 and len(dict(samples)) == 1
                level = WARNING if always else int(Severity.INFO)
                result[mode, LABELS, step] = level if share(now) >= 0.99 else OK
                continue
            if (
                before is not None
                and not gets_better(now, before)
                and any(
                    not_learned(now, label)
                    and not_learned(before, label)
                    and not gets_better(now, before, label)
                    for label in set(range(n)) - rare
                )
            ):
                level = WARNING
            result[mode, LABELS, step] = level
        for step, n, parts in short_stretches(rule, run, mode):
            if surely_rare(rule, parts, n):
                now = [pair for part in parts for pair in part]
                age, samples = later[step]
                level = level_of_rare(rule, now, samples, age, n, None)
                result[mode, LABELS, step] = level
    return result


def at_least(part: float, whole: int) -> float:
    """The lower end of Wilson's interval."""
    if not whole:
        return 0.0
    p, z = part / whole, 1.96
    spread = z * math.sqrt(p * (1 - p) / whole + z * z / (4 * whole * whole))
    return (p + z * z / (2 * whole) - spread) / (1 + z * z / whole)


def has_other_numbers(rule: Confusion, now: Samples, before: Samples) -> bool:
    """Whether classes are told apart under numbers of others, mostly theirs before."""

    def said_of(samples: Samples, label: int) -> int:
        said = Counter(taken for _, taken in of_class(samples, label))
        # Of two that are said as often the smaller one.
        return max(sorted(said), key=lambda taken: said[taken], default=0)

    def is_told_apart(label: int, number: int) -> bool:
        own = of_class(now, label)
        taken = sum(said == number for _, said in own)
        said = sum(pair[1] == number for pair in now)
        return (
            len(own) >= 10
            and taken >= rule.learned * len(own)
            and taken >= rule.learned * said
        )

    labels = {label for label, _ in now}
    told = {
        label: number
        for label in labels
        if is_told_apart(label, number := said_of(now, label))
        and said_of(before, label) == number
    }
    share_told = sum(label in told for label, _ in now) / max(1, len(now))
    others = sum(label != number for label, number in told.items())
    return len(labels) > 2 and share_told >= rule.learned and others > 1


def confusion(rule: Confusion, run: FakeRun) -> Verdicts:
    def mixed(
        samples: Samples, label: int, said: int, most: float, nearly_all: float
    ) -> bool:
        own = of_class(samples, label)
        if label == said:
            wrong = sum(pair[1] != label for pair in own)
            bad = at_least(wrong, len(own)) > max(1 - rule.min_diag, nearly_all)
            bad &= len({label for label, _ in samples}) > 2
        else:
            taken = sum(pair[1] == said for pair in own)
            bad = at_least(taken, len(own)) > max(rule.max_off_diag, most)
        others = [pair for pair in samples if pair[0] not in {label, said}]
        bad &= len(own) >= 10
        return bad and bool(others) and share(others) >= rule.learned

    result: Verdicts = {}
    for mode in ModeKeys:
        for step, n, now, before in stretches(rule, run, mode):
            level = OK
            if before is not None and not gets_better(now, before):
                for most, nearly_all, severity in (
                    (0.0, 0.0, int(Severity.INFO)),
                    (0.5, 0.7, WARNING),
                ):
                    if any(
                        mixed(now, label, said, most, nearly_all)
                        and mixed(before, label, said, most, nearly_all)
                        and not gets_better(now, before, label)
                        for label in range(n)
                        for said in range(n)
                    ):
                        level = severity
            if (
                before is not None
                and mode is ModeKeys.EVAL
                and has_other_numbers(rule, now, before)
            ):
                level = WARNING
            result[mode, LABELS, step] = level
    return result


BOOKS_OF_CLASSES: dict[type[Rule], Callable[[Any, FakeRun], Verdicts]] = {
    ClassImbalance: imbalance,
    Confusion: confusion,
}
