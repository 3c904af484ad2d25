"""What a trainer stops by, or keeps the best model by: a metric, and its direction.

Thread safety: the training's thread.  Errors: none of its own.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tdbg.hooks.pytorch.checks.data.metric_sums import REMEMBERS
from tdbg.run.observations import Fault

__all__ = [
    "MetricStates",
    "MetricWatch",
    "MetricWatcher",
    "rises",
    "speaks_of_validation",
]

# Evaluations that show where a metric goes, and that begin with an old state.
_ENOUGH, _ENOUGH_STATES = 3, 2
_VALIDATION = {"val", "valid", "validation", "eval", "dev"}
# Words that say where a metric comes from, not what it is.
_STAGES = re.compile(
    "val|valid|validation|eval|dev|train|training|test|epoch|step|avg|mean|macro|micro"
    "|weighted|top1|top5|balanced|multiclass|binary|score|rate"
)
_RISING = re.compile(
    "acc|accuracy|f1|auc|auroc|auprc|roc|precision|recall|iou|miou|jaccard|dice|bleu"
    "|rouge|r2|psnr|ssim|mcc"
)
_FALLING = re.compile(
    "loss|error|err|mae|mse|rmse|mape|smape|perplexity|ppl|wer|cer|nll"
)


class MetricWatcher(NamedTuple):
    """Something that follows a metric.

    Attributes:
        name: Its class.
        kind: What it does by the metric: the class that it is of.
        monitor: The name of the metric.
        mode: Which way the metric is to go: ``"min"`` or ``"max"``.
        setting: How the other way is asked for.
    """

    name: str
    kind: str
    monitor: str
    mode: str
    setting: str = ""


_Observe = Callable[[Fault, str, dict[str, float], dict[str, str]], None]


class MetricWatch:
    """Follows the metrics that a trainer watches, from evaluation to evaluation.

    Two that watch one metric in both directions are meant.

    Args:
        watchers: Those who watch.
        observe: Receives a fault, whose it is, and its numbers and words.
    """

    def __init__(self, watchers: Iterable[MetricWatcher], observe: _Observe) -> None:
        known = [*watchers]
        modes: dict[str, set[str]] = {}
        for each in known:
            modes.setdefault(each.monitor, set()).add(each.mode)
        self._watchers = [each for each in known if len(modes[each.monitor]) == 1]
        self._observe = observe
        self._first: dict[MetricWatcher, float] = {}
        self._n: dict[MetricWatcher, int] = {}

    def evaluated(
        self, metrics: Mapping[str, Any], directions: Mapping[str, bool]
    ) -> None:
        """Look at the metrics of an evaluation.

        Args:
            metrics: Their values, by name.
            directions: Whether they rise as a model gets better, where their own
                objects say so.
        """
        for each in [*self._watchers]:
            value = _number(metrics.get(each.monitor))
            way = directions.get(each.monitor, rises(each.monitor))
            if value is None or way is None:
                continue
            if each.mode != ("min" if way else "max"):
                self._watchers.remove(each)
            else:
                self._look_at(each, value, is_rising=way)

    def _look_at(self, each: MetricWatcher, value: float, *, is_rising: bool) -> None:
        first = self._first.setdefault(each, value)
        self._n[each] = n = self._n.get(each, 0) + 1
        has_moved = value > first if is_rising else value < first
        if has_moved and n >= _ENOUGH:
            numbers = {"first": first, "latest": value, "epochs": float(n)}
            words = {"class": each.kind, "monitor": each.monitor, "mode": each.mode}
            words["setting"] = each.setting
            self._observe(Fault.WATCHES_WRONG_WAY, each.name, numbers, words)
            self._watchers.remove(each)


class MetricStates:
    """Follows the states of a module's metrics (torchmetrics) through validations.

    A metric that is computed without a reset counts batches of what was before.

    Args:
        observe: Receives a fault, whose it is, and its numbers and words.
    """

    def __init__(self, observe: _Observe) -> None:
        self._observe = observe
        self._before: dict[str, int] = {}
        self._after: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._n: dict[str, int] = {}

    def begins(self, module: Any) -> None:
        """Note the updates that the states hold as a validation begins."""
        self._last = self._after
        self._before = {name: m._update_count for name, m in _metrics_of(module)}

    def counted(self, module: Any) -> None:
        """Note the updates that they hold after its last batch."""
        self._after = {name: m._update_count for name, m in _metrics_of(module)}

    def ends(self, module: Any, logged: Iterable[Any]) -> None:
        """Look at the metrics that were computed.

        Args:
            module: Has the metrics.
            logged: The metrics that the trainer computes.
        """
        of_trainer = {id(each) for each in logged}
        for name, metric in _metrics_of(module):
            before, after = self._before.get(name, 0), self._after.get(name, 0)
            is_computed = metric._computed is not None or id(metric) in of_trainer
            is_kept = after > before > 0 and is_computed
            self._n[name] = n = self._n.get(name, 0) + 1 if is_kept else 0
            if n == _ENOUGH_STATES:
                is_mixed = before != self._last.get(name, before)
                numbers = {"before": float(before), "after": float(after)}
                words = {"class": type(metric).__name__}
                words["how"] = "mixed" if is_mixed else "kept"
                self._observe(Fault.METRIC_STATE_KEPT, name, numbers, words)


def _metrics_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield metrics with a state that is to be reset: sums, not the best so far."""
    library = sys.modules.get("torchmetrics")
    if library is None:
        return
    wrappers: list[str] = []
    for name, each in module.named_modules():
        if not isinstance(each, library.Metric) or name.startswith(tuple(wrappers)):
            continue
        if type(each).__module__.startswith(REMEMBERS):
            wrappers.append(f"{name}.")
        else:
            yield name, each


def rises(name: str) -> bool | None:
    """Return whether a metric of this name rises as a model gets better.

    Returns:
        None if a word of the name is not known.
    """
    words = [each for each in _words(name) if not _STAGES.fullmatch(each)]
    if words and all(map(_RISING.fullmatch, words)):
        return True
    return False if words and all(map(_FALLING.fullmatch, words)) else None


def speaks_of_validation(name: str) -> bool:
    """Return whether a name begins as those of validation do."""
    return next(iter(_words(name)), "") in _VALIDATION


def _words(name: str) -> list[str]:
    return [each for each in re.split(r"[^a-z0-9]+", name.lower()) if each]


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None
