"""What a trainer stops by, or keeps the best model by: a metric, and its direction.

Thread safety: the training's thread.  Errors: none of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tdbg.run.observations import Fault

__all__ = ["MetricWatch", "Watcher", "rises", "speaks_of_validation"]

# Evaluations that show where a metric goes.
_ENOUGH = 3
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


class Watcher(NamedTuple):
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

    def __init__(self, watchers: Iterable[Watcher], observe: _Observe) -> None:
        known = [*watchers]
        modes: dict[str, set[str]] = {}
        for each in known:
            modes.setdefault(each.monitor, set()).add(each.mode)
        self._watchers = [each for each in known if len(modes[each.monitor]) == 1]
        self._observe = observe
        self._first: dict[Watcher, float] = {}
        self._n: dict[Watcher, int] = {}

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

    def _look_at(self, each: Watcher, value: float, *, is_rising: bool) -> None:
        first = self._first.setdefault(each, value)
        self._n[each] = n = self._n.get(each, 0) + 1
        has_moved = value > first if is_rising else value < first
        if has_moved and n >= _ENOUGH:
            numbers = {"first": first, "latest": value, "epochs": float(n)}
            words = {"class": each.kind, "monitor": each.monitor, "mode": each.mode}
            words["setting"] = each.setting
            self._observe(Fault.WATCHES_WRONG_WAY, each.name, numbers, words)
            self._watchers.remove(each)


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
