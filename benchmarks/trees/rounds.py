"""What capturing the rounds of boosted trees costs.

    python -m benchmarks.trees.rounds [--quick]

XGBoost and LightGBM train the digits (1,797 x 64, 10 classes: 10 trees a round, depth
4, one thread) again and again; plain, with a hook that captures losses only, with trees
and importance at every round and at every tenth, and with SHAP at every tenth.  So does
LightGBM with one tree a round (breast cancer, 569 x 30), and XGBoost with rounds of a
usual length (60,000 rows of noise).  Models must be equal to the byte, and what was
captured must be the rounds that were asked for.

The last table has what one capture costs by the round at which it is made: by slices,
as the hook does, and of the whole model, as smdebug's hook did.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm
import numpy as np
import xgboost
from sklearn.datasets import load_breast_cancer, load_digits

import tdbg
import tdbg.lightgbm as tl
import tdbg.xgboost as tx
from benchmarks._harness import (
    CONTROL,
    Measured,
    Report,
    Samples,
    Table,
    check,
    check_close,
    check_equal,
    interleave,
    options,
)
from tdbg.hooks.trees.importance import Importance
from tdbg.hooks.trees.rounds import DataSet
from tdbg.hooks.xgboost.booster import XGBoostModel
from tdbg.modes import ModeKeys

ENVIRONMENT = "trees"

XGBOOST = {
    "objective": "multi:softprob",
    "num_class": 10,
    "max_depth": 4,
    "nthread": 1,
    "seed": 1,
}
LIGHTGBM = {
    "objective": "multiclass",
    "num_class": 10,
    "num_leaves": 15,
    "num_threads": 1,
    "verbosity": -1,
    "seed": 1,
    "metric": "multi_logloss",
}


class Workload(NamedTuple):
    """What is trained.

    Attributes:
        framework: By which library.
        title: In words.
        load: Returns samples and labels.
        parameters: Of the library.
        n_rounds: Of a training.
        leaves_out: Contenders that do not take part.
    """

    framework: str
    title: str
    load: Callable[[], tuple[Any, Any]]
    parameters: dict[str, Any]
    n_rounds: int = 50
    leaves_out: tuple[str, ...] = ()


def digits() -> tuple[Any, Any]:
    """1,797 samples of 64 features in 10 classes."""
    return load_digits(return_X_y=True)


def cancer() -> tuple[Any, Any]:
    """569 samples of 30 features in 2 classes."""
    return load_breast_cancer(return_X_y=True)


def noise() -> tuple[Any, Any]:
    """60,000 samples of 64 features, in 10 classes by one of them."""
    x = np.random.default_rng(0).normal(size=(60_000, 64)).astype(np.float32)
    return x, np.clip(4.5 + 2 * x[:, 0] + x[:, 1], 0, 9).astype(np.int64)


BINARY = {**LIGHTGBM, "objective": "binary", "num_class": 1, "metric": "binary_logloss"}
WORKLOADS = (
    Workload("xgboost", "Rounds of xgboost, 10 trees each", digits, XGBOOST),
    Workload("lightgbm", "Rounds of lightgbm, 10 trees each", digits, LIGHTGBM),
    Workload("lightgbm", "Rounds of lightgbm, one tree each", cancer, BINARY),
    Workload(
        "xgboost",
        "Rounds of xgboost, 60,000 rows",
        noise,
        XGBOOST,
        11,
        ("SHAP, every 10",),
    ),
)

#: Collections and the interval of each contender.
HOOKED: dict[str, tuple[tuple[str, ...], int]] = {
    "losses": ((), 10),
    "trees, importance": (("trees", "feature_importance"), 1),
    "the same, every 10": (("trees", "feature_importance"), 10),
    "SHAP, every 10": (("average_shap",), 10),
}
COLUMNS = ("what is captured", "ms a round more", "ratio of a training")


class Contender:
    """Trains from the beginning, perhaps with a hook, and checks what was captured."""

    def __init__(
        self, workload: Workload, name: str, folder: Path, n_rounds: int
    ) -> None:
        self.framework, self.name = workload.framework, name
        self.parameters = workload.parameters
        self.folder, self.n_rounds = folder, n_rounds
        self.x, self.y = workload.load()

    def __call__(self) -> Measured:
        """Train once; the seconds are those of the processor, of all threads."""
        hook = self._hook()
        callbacks = [] if hook is None else [hook]
        if self.framework == "xgboost":
            data = xgboost.DMatrix(self.x, self.y)
            began = time.process_time()
            booster: Any = xgboost.train(
                self.parameters,
                data,
                self.n_rounds,
                evals=[(data, "train")],
                verbose_eval=False,
                callbacks=callbacks,
            )
            seconds = time.process_time() - began
            model = bytes(booster.save_raw("ubj"))
        else:
            train = lightgbm.Dataset(self.x, self.y)
            began = time.process_time()
            booster = lightgbm.train(
                self.parameters,
                train,
                self.n_rounds,
                valid_sets=[train],
                valid_names=["train"],
                callbacks=callbacks,
            )
            seconds = time.process_time() - began
            model = booster.model_to_string().encode()
        if hook is not None:
            self._check(hook)
        return Measured(seconds, model)

    def _hook(self) -> Any:
        if self.name not in HOOKED:
            return None
        collections, interval = HOOKED[self.name]
        shutil.rmtree(self.folder, ignore_errors=True)
        settings = {
            "include_collections": collections,
            "save_config": tdbg.SaveConfig(
                save_interval=interval, statistics_interval=interval
            ),
        }
        if self.framework == "xgboost":
            return tx.Hook(self.folder, **settings)
        return tl.Hook(self.folder, shap_data=self.x, **settings)

    def _check(self, hook: Any) -> None:
        counters = hook.counters()
        check(hook.close(timeout=60.0), "everything is written")
        check_equal(counters["internal_errors"], 0, "errors of tdbg")
        check_equal(counters["refused_tensors"], 0, "tensors refused")
        trial = tdbg.create_trial(self.folder)
        collections, interval = HOOKED[self.name]
        for collection in ("losses", *collections):
            each = 1 if collection == "losses" else interval
            name = trial.tensor_names(collection=collection)[0]
            steps = list(trial.tensor(name).steps(mode=ModeKeys.TRAIN))
            check_equal(steps, list(range(0, self.n_rounds, each)), name)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    if given.quick:
        given.seconds = 5.0
    folder = Path(tempfile.mkdtemp(prefix="trees-"))
    try:
        measure(given, folder).save()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: argparse.Namespace, folder: Path) -> Report:
    """All contenders of both frameworks, and single captures."""
    tables, data = [], {}
    for workload in WORKLOADS:
        n_rounds = 11 if given.quick else workload.n_rounds
        contenders = {
            name: Contender(workload, name, folder / str(i), n_rounds)
            for i, name in enumerate(("plain", *HOOKED))
            if name not in workload.leaves_out
        }
        samples = interleave(
            contenders,
            baseline="plain",
            rounds=given.rounds or (3 if given.quick else 100),
            seed=given.seed,
            at_most_seconds=given.seconds,
            verify=check_models,
        )
        tables.append(table_of(workload.title, samples, n_rounds))
        data[workload.title] = samples.to_json()
    tables.append(captures((5, 10) if given.quick else (5, 25, 100)))
    return Report(
        "trees/rounds",
        given,
        packages=("xgboost-cpu", "lightgbm", "numpy", "tdbg"),
        tables=tables,
        data=data,
    )


def check_models(answers: Mapping[str, Any]) -> None:
    """All trainings make the same model."""
    for name, model in answers.items():
        check(model == answers["plain"], f"the model of {name} is that of plain")


def table_of(title: str, samples: Samples, n_rounds: int) -> Table:
    """What each contender takes beyond the plain one."""
    table = Table(title, COLUMNS)
    plain = samples.seconds_of("plain")
    for name in (each for each in HOOKED if each in samples.seconds):
        more = 1e3 * plain * (samples.ratio(name).median - 1) / n_rounds
        table.add(name, f"{more:.2f}", samples.text(name))
    table.add("plain / plain", "", samples.control())
    table.note = (
        f"Processor time of all threads; {len(samples.seconds[CONTROL])} trainings of "
        f"{n_rounds} rounds each. A plain round takes {1e3 * plain / n_rounds:.2f} ms."
    )
    return table


def captures(rounds: tuple[int, ...]) -> Table:
    """What one capture costs after so many rounds, sliced and whole."""
    x, y = load_digits(return_X_y=True)
    data = xgboost.DMatrix(x, y)
    table = Table(
        "One capture of XGBoost, ms",
        ("after rounds", "SHAP sliced", "SHAP whole", "trees sliced", "dump whole"),
    )
    for n in rounds:
        booster = xgboost.train(XGBOOST, data, n)
        shap, whole = [], []
        for _ in range(3):
            part = time_of(
                lambda b=booster, n=n: b[n - 1 : n].predict(data, pred_contribs=True)
            )
            shap.append(part)
            whole.append(time_of(lambda b=booster: b.predict(data, pred_contribs=True)))
        trees, dumps = [], []
        for _ in range(5):
            model = XGBoostModel(booster)
            model._n_rounds, model._n_trees = n - 1, 10 * (n - 1)
            model._importance = Importance(x.shape[1])
            trees.append(time_of(model.trees))
            dumps.append(time_of(lambda b=booster: b.get_dump(with_stats=True)))
        verify_sum(booster, data, n)
        cells = (min(each) for each in (shap, whole, trees, dumps))
        table.add(n, *(f"{1e3 * cell:.1f}" for cell in cells))
    table.note = "Processor time, the least of 3 and 5; 1,797 rows, 10 classes."
    return table


def verify_sum(booster: xgboost.Booster, data: xgboost.DMatrix, n: int) -> None:
    """Contributions that the hook adds up are those of the whole model."""
    model = XGBoostModel(booster)
    found = model.contributions(DataSet(data, is_training=True), 10_000)
    whole = booster.predict(data, pred_contribs=True)
    check_close(float(abs(found - whole).max()) + 1.0, 1.0, 1e-4, f"SHAP after {n}")


def time_of(function: Callable[[], Any]) -> float:
    """Processor seconds of one call."""
    began = time.process_time()
    function()
    return time.process_time() - began


if __name__ == "__main__":
    main()
