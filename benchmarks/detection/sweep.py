"""Recall and false alarms of one rule as one of its thresholds is moved.

Recorded runs are judged again for each value; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks._harness.tables import Table
from benchmarks.detection.corpus.case import cases
from benchmarks.detection.halves import HALVES
from benchmarks.detection.judge import judge
from benchmarks.detection.record import Recording
from benchmarks.detection.table import count, share, spread
from tdbg.findings import Severity
from tdbg.rules.registry import make, names

__all__ = ["SWEPT", "sweep"]

#: The threshold of each rule that matters most, and values of it.
SWEPT: dict[str, tuple[str, tuple[float, ...]]] = {
    "ClassImbalance": ("threshold_imbalance", (3, 5, 10, 20, 50)),
    "Confusion": ("learned", (0.6, 0.7, 0.8, 0.9)),
    "DeadEmbedding": ("threshold", (30.0, 50.0, 70.0, 90.0)),
    "DeadRelu": ("threshold_layer", (30.0, 50.0, 70.0, 90.0)),
    "ExplodingGradient": ("factor", (10.0, 30.0, 100.0, 1000.0)),
    "LossNotDecreasing": ("num_steps", (20, 35, 50, 80)),
    "LossSpike": ("deviations", (4.0, 8.0, 16.0)),
    "NLPSequenceRatio": ("any_percent", (30.0, 50.0, 80.0, 95.0)),
    "NotNormalizedData": ("max_mean", (1.0, 3.0, 10.0)),
    "Overfit": ("rise", (0.03, 0.1, 0.3)),
    "Overtraining": ("patience_validation", (5, 10, 20)),
    "PoorWeightInitialization": ("threshold", (10.0, 100.0, 1000.0)),
    "PrecisionLoss": ("threshold", (10.0, 25.0, 50.0)),
    "SaturatedActivation": ("threshold_layer", (30.0, 50.0, 70.0)),
    "Underfitting": ("num_steps", (50, 70, 100)),
    "VanishingGradient": ("relative", (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)),
    "WeightUpdateRatio": ("small_threshold", (1e-8, 1e-7, 1e-6, 1e-5)),
}


def sweep(
    recordings: Sequence[Recording],
    rules: Sequence[str] = (),
    *,
    jobs: int = 1,
    paths: Sequence[str] = (),
) -> Iterator[Table]:
    """A table for each rule, of these or of all that are swept."""
    by_name = {case.name: case for case in cases()}
    for rule, (parameter, values) in SWEPT.items():
        if (rules and rule not in rules) or rule not in names():
            continue
        chosen = [
            one
            for one in recordings
            if not by_name[one.case].is_sick or rule in by_name[one.case].named_by
        ]
        default = getattr(make(rule), parameter)
        table = Table(
            f"{rule}.{parameter}",
            ("value", "half", "named", "in time", "delay", "errors", "warnings"),
            note=f"The default is {default:g}. Runs that the rule may "
            "name; healthy runs with an error or a warning of it.",
        )
        for value in sorted({*values, default}):
            judged = list(
                judge(
                    chosen,
                    changes={rule: {parameter: value}},
                    only_rules=[rule],
                    jobs=jobs,
                    paths=paths,
                )
            )
            for half in HALVES:
                here = [one for one in judged if one.half == half]
                sick = [one for one in here if one.is_sick]
                well = [one for one in here if not one.is_sick]
                alone = [(one, one.first_of([rule])) for one in sick]
                late = [
                    named.step - one.visible_at
                    for one, named in alone
                    if named is not None and one.visible_at is not None
                ]
                table.add(
                    f"{value:g}",
                    half,
                    share(named is not None for _, named in alone),
                    sum(delay <= 0 for delay in late),
                    spread(late),
                    count(bool(one.alarms(Severity.ERROR)) for one in well),
                    count(bool(one.alarms(Severity.WARNING)) for one in well),
                )
        yield table
