"""``train`` of XGBoost, whose only part of tdbg is a callback.

Trees learn which digits are odd. The sick training is given a further feature that is
made from the label, as by an accident in a data base: it learns that, and nothing else.
Its validation data have it, too, so that no metric tells; what is to be answered later
has not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xgboost

from tdbg.xgboost import Hook, SaveConfig

if TYPE_CHECKING:
    from tdbg.demo.data import Digits
    from tdbg.rules import Rule

__all__ = ["LOOK_AT", "SICK", "Training", "make_hook"]

SICK = "a feature that gives the answer away"
LOOK_AT = "feature_importance/total_gain/f64"

SEED = 7


def make_hook(run: Path, rules: Sequence[Rule]) -> Hook:
    """Make a hook that captures statistics of every round."""
    return Hook(
        run,
        include_collections=["metrics", "losses", "feature_importance", "trees"],
        rules=rules,
        save_config=SaveConfig(save_interval=1, statistics_interval=1),
    )


class _Progress(xgboost.callback.TrainingCallback):
    def __init__(self, on_step: Callable[[int], None]) -> None:
        self._on_step = on_step

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        del model, evals_log
        self._on_step(epoch + 1)
        return False


class Training:
    """Boosted trees of four levels.

    Args:
        digits: What is learned.
        hook: Captures the training.
        is_sick: Whether there is a feature that gives the answer away.
    """

    def __init__(self, digits: Digits, hook: Hook, *, is_sick: bool) -> None:
        known, new = digits.rows()
        labels, self._labels = digits.train_labels % 2, digits.test_labels % 2
        validation = new
        if is_sick:
            known = np.column_stack([known, labels])
            validation = np.column_stack([validation, self._labels])
            new = np.column_stack([new, np.full(len(new), np.nan)])
        self._hook = hook
        self._known = xgboost.DMatrix(known, labels)
        self._validation = xgboost.DMatrix(validation, self._labels)
        self._new = xgboost.DMatrix(new)
        self._booster: Any = None

    def fit(self, n_steps: int, on_step: Callable[[int], None]) -> None:
        """Train: ``frameworks.Training`` says how."""
        self._booster = xgboost.train(
            {
                "objective": "binary:logistic",
                "max_depth": 4,
                "eta": 0.05,
                "nthread": 1,
                "seed": SEED,
                "eval_metric": "logloss",
            },
            self._known,
            n_steps,
            evals=[(self._known, "train"), (self._validation, "validation")],
            verbose_eval=False,
            callbacks=[self._hook, _Progress(on_step)],
        )

    def accuracy(self) -> float:
        """The share of right answers on the test images."""
        are_odd = self._booster.predict(self._new) > 0.5
        return float((are_odd == self._labels).mean())
