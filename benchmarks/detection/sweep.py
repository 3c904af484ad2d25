"""Recall and false alarms of one rule as one of its thresholds is moved.

Recorded runs are judged again for each value; nothing is trained.
"""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from benchmarks._harness.tables import Table
from benchmarks.detection.judge import Judged, judged_by, rules_for
from benchmarks.detection.kit.case import HALVES, case_named, load
from benchmarks.detection.record import Recording
from benchmarks.detection.table import count
from tdbg.rules.registry import make, names
from tdbg.run.findings import Severity

__all__ = ["SWEPT", "sweep"]

#: The threshold of each rule that matters most, and values of it.
SWEPT: dict[str, tuple[str, tuple[float, ...]]] = {
    "AllZero": ("threshold", (50.0, 80.0, 90.0, 99.0, 100.0)),
    "ClassImbalance": ("threshold_imbalance", (3, 5, 10, 20, 50)),
    "Confusion": ("learned", (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)),
    "DeadEmbedding": ("threshold", (10.0, 30.0, 50.0, 70.0, 90.0)),
    "DeadRelu": ("threshold_layer", (20.0, 35.0, 50.0, 65.0, 80.0, 90.0)),
    "ExplodingGradient": ("factor", (10.0, 30.0, 100.0, 300.0, 1000.0)),
    "LossMisuse": ("risen", (1.5, 2.0, 4.0, 8.0)),
    "LossNotDecreasing": ("window", (20, 35, 50, 65, 80, 100)),
    "LossSpike": ("deviations", (4.0, 6.0, 8.0, 12.0, 16.0)),
    "MissingGradient": ("patience", (2, 5, 10, 20)),
    "NLPSequenceRatio": ("any_percent", (30.0, 50.0, 65.0, 80.0, 95.0)),
    "NotInOptimizer": ("patience", (1, 2, 5, 10)),
    "NotNormalizedData": ("max_mean", (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)),
    "Overfit": ("rise", (0.03, 0.05, 0.1, 0.2, 0.4)),
    "Overtraining": ("passes_validation", (3, 5, 10, 15, 20)),
    "PoorWeightInitialization": (
        "output_threshold",
        (10.0, 30.0, 100.0, 300.0, 1000.0),
    ),
    "PrecisionLoss": ("threshold", (5.0, 10.0, 25.0, 40.0, 60.0)),
    "SaturatedActivation": ("threshold_values", (30.0, 50.0, 70.0, 85.0, 95.0)),
    "TensorVariance": ("relative", (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)),
    "UnchangedTensor": ("num_steps", (2, 3, 5, 10)),
    "Underfitting": ("num_steps", (35, 50, 70, 100, 150)),
    "UnshuffledData": ("between_percent", (20.0, 35.0, 50.0, 65.0, 80.0, 95.0)),
    "VanishingGradient": ("relative", (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)),
    "VanishingLearningRate": ("remaining", (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)),
    "WeightUpdateRatio": ("small_threshold", (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)),
    "ZeroLearningRate": ("patience", (2, 3, 5, 10)),
}

COLUMNS = ("named", "in time", "errors", "warnings")
#: A rule, and a value of its threshold.
_Variant = tuple[str, float]
#: A run, and what it is judged by together: each rule with one value.
_Work = tuple[Recording, tuple[tuple[_Variant, ...], ...]]


def sweep(
    recordings: Sequence[Recording],
    rules: Sequence[str] = (),
    *,
    jobs: int = 1,
    paths: Sequence[str] = (),
) -> Table:
    """Both halves, by rule and value: of these rules or of all that are swept."""
    variants = [
        (rule, value)
        for rule, (parameter, values) in SWEPT.items()
        if rule in names() and (not rules or rule in rules)
        for value in sorted({*values, _default(rule, parameter)})
    ]
    table = Table(
        "as thresholds move",
        ("threshold", "value", *COLUMNS, f"held out: {COLUMNS[0]}", *COLUMNS[1:]),
        note="Each rule by itself, first the tuning half, then the other. Named, "
        "and in time: of the runs of which the rule may name the fault. Errors and "
        "warnings: healthy runs with one of it. *: the default.",
    )
    found = _judged(recordings, variants, jobs, paths)
    for rule, value in variants:
        parameter = SWEPT[rule][0]
        is_default = value == _default(rule, parameter)
        table.add(
            f"{rule}.{parameter}",
            f"{value:g}{' *' if is_default else ''}",
            *(cell for half in HALVES for cell in _row(rule, found[rule, value], half)),
        )
    return table


def _default(rule: str, parameter: str) -> float:
    return float(getattr(make(rule), parameter))


def _row(rule: str, judged: Iterable[Judged], half: str) -> tuple[object, ...]:
    here = [one for one in judged if one.half == half]
    well = [one for one in here if not one.is_sick]
    sick = [one for one in here if one.is_sick]
    alone = [(one, one.first_of([rule])) for one in sick]
    in_time = [
        one.visible_at is not None and named.step <= one.visible_at
        for one, named in alone
        if named is not None
    ]
    return (
        f"{len(in_time)} of {len(sick)}" if sick else "-",
        sum(in_time),
        *(
            count(
                any(named.rule == rule for named in one.alarms(severity))
                for one in well
            )
            for severity in (Severity.ERROR, Severity.WARNING)
        ),
    )


def _judged(
    recordings: Iterable[Recording],
    variants: Sequence[_Variant],
    jobs: int,
    paths: Sequence[str],
) -> dict[_Variant, list[Judged]]:
    work: list[_Work] = []
    for recording in recordings:
        case = case_named(recording.case)
        mine = [v for v in variants if not case.is_sick or v[0] in case.named_by]
        if mine:
            work.append((recording, _together(mine)))
    found: dict[_Variant, list[Judged]] = defaultdict(list)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(jobs, load, (tuple(paths),)) as pool:
        for judged in pool.imap_unordered(_judge, work):
            for together, one in judged:
                for variant in together:
                    found[variant].append(one)
    return found


def _together(variants: Iterable[_Variant]) -> tuple[tuple[_Variant, ...], ...]:
    """As few groups as can be, in which each rule is once: one pass judges a group."""
    of_rule: dict[str, list[_Variant]] = defaultdict(list)
    for variant in variants:
        of_rule[variant[0]].append(variant)
    groups = zip_longest(*of_rule.values())
    return tuple(tuple(v for v in group if v is not None) for group in groups)


def _judge(work: _Work) -> list[tuple[tuple[_Variant, ...], Judged]]:
    """One run, by each group."""
    recording, groups = work
    found = []
    for group in groups:
        changes = {
            rule: {SWEPT[rule][0]: _of_kind(rule, value)} for rule, value in group
        }
        rules = rules_for(recording, changes)
        asked = [each for each in rules if each.name in changes]
        found.append((group, judged_by(recording, asked)))
    return found


def _of_kind(rule: str, value: float) -> float:
    """A whole number where the parameter is one."""
    kind: type[int | float] = type(getattr(make(rule), SWEPT[rule][0]))
    return kind(value)
