"""What smdebug's hook for XGBoost takes of a round, in an environment of its own.

    build/benchmarks/env-smdebug_trees/bin/python -m benchmarks.trees.rounds_smdebug

smdebug 1.0.34 is a callback of XGBoost before 1.3, so that its rounds are compared with
plain ones of the same version: the digits, as in ``rounds.py``, on one thread.  The
figure is processor time inside of the hook, by round.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import xgboost
from sklearn.datasets import load_digits
from smdebug import SaveConfig  # type: ignore[import-not-found]
from smdebug.xgboost import Hook  # type: ignore[import-not-found]

PARAMETERS = {
    "objective": "multi:softprob",
    "num_class": 10,
    "max_depth": 4,
    "nthread": 1,
    "seed": 1,
}
CAPTURED = {
    "metrics, importance, trees": ["metrics", "feature_importance", "trees"],
    "SHAP": ["average_shap"],
}


class Timed:
    """A hook, and what each round of it took."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook
        self.seconds: list[float] = []

    def __call__(self, env: Any) -> None:
        began = time.process_time()
        self._hook(env)
        self.seconds.append(time.process_time() - began)


def main() -> None:
    """Train with each hook, and print what the rounds took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=26)
    parser.add_argument("--trainings", type=int, default=3)
    given = parser.parse_args()
    logging.disable(logging.INFO)
    x, y = load_digits(return_X_y=True)
    data = xgboost.DMatrix(x, y)
    folder = Path(tempfile.mkdtemp())
    for name, collections in CAPTURED.items():
        found = []
        for _ in range(given.trainings):
            shutil.rmtree(folder, ignore_errors=True)
            hook = Hook(
                str(folder),
                include_collections=collections,
                save_config=SaveConfig(save_interval=1),
                train_data=data,
                validation_data=data,
            )
            timed = Timed(hook)
            xgboost.train(
                PARAMETERS,
                data,
                given.rounds,
                evals=[(data, "train")],
                verbose_eval=False,
                callbacks=[timed],
            )
            hook.close()
            if len(timed.seconds) != given.rounds:
                sys.exit(f"{len(timed.seconds)} rounds instead of {given.rounds}")
            found.append(timed.seconds)
        for number in (5, given.rounds - 1):
            ms = 1e3 * statistics.median(each[number] for each in found)
            print(f"{name}, round {number}: {ms:.1f} ms")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
