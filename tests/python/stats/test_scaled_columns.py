"""Tables show which rows their scaler was fitted on, and say nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler

from tdbg.stats.scaled_columns import Scales

Table = NDArray[Any]
CANCER = load_breast_cancer().data
WINE = load_wine().data


def shuffled(x: Table) -> tuple[Table, Table]:
    """Return three quarters of the rows, and the others."""
    rows = np.random.default_rng(0).permutation(len(x))
    n = 3 * len(x) // 4
    return x[rows[:n]], x[rows[n:]]


def told(trained: Table, *evaluated: Table, dtype: str = "float32") -> list[Any]:
    first = trained.astype(dtype)
    scales = Scales(first, np.arange(len(first)))
    found = [scales.compare(x.astype(dtype), np.arange(len(x))) for x in evaluated]
    return [None if each is None else (each.how, each.is_anew) for each in found]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("x", [CANCER, WINE])
@pytest.mark.parametrize(
    ("scaler", "kind"), [(StandardScaler, "standard"), (MinMaxScaler, "range")]
)
def test_a_scaler_that_was_fitted_on_all_rows_or_again_is_known(
    x: Table, scaler: Callable[[], Any], kind: str, dtype: str
) -> None:
    assert told(*shuffled(scaler().fit_transform(x)), dtype=dtype) == [(kind, False)]
    trained, evaluated = shuffled(x)
    scaled = scaler().fit_transform(trained)
    anew = scaler().fit_transform(evaluated)
    assert told(scaled, anew, dtype=dtype) == [(kind, True)]


def test_pandas_divides_by_one_row_less() -> None:
    x = (CANCER - CANCER.mean(0)) / CANCER.std(0, ddof=1)
    assert told(*shuffled(x)) == [("standard", False)]


def test_a_third_part_may_be_what_is_missing() -> None:
    trained, others = shuffled(StandardScaler().fit_transform(CANCER))
    n = len(others) // 2
    found = told(trained, others[:n], others[n:], others[:n])
    assert found == [None, ("standard", False), ("standard", False)]


def test_parts_of_one_table_are_compared_with_all_of_it() -> None:
    x = StandardScaler().fit_transform(CANCER).astype(np.float32)
    scales = Scales(x, np.arange(300))
    found = scales.compare(x, np.arange(300, 400))
    assert found is not None
    assert not found.is_anew
    assert found.numbers["all"] == len(x)
    other = np.array(x)  # The rest of it may be evaluated by nobody.
    assert scales.compare(other, np.arange(300, 400)) is None


def patients() -> tuple[Table, Table]:
    """Return tables in which each patient is scaled by itself."""
    parts = [StandardScaler().fit_transform(CANCER[i : i + 60]) for i in (0, 60, 120)]
    return np.concatenate(parts[:2]), parts[2]


def fitted_once(scaler: Any, x: Table) -> tuple[Table, Table]:
    trained, evaluated = shuffled(x)
    return scaler.fit_transform(trained), scaler.transform(evaluated)


def same(x: Table) -> tuple[Table, Table]:
    scaled = StandardScaler().fit_transform(x)
    return scaled, scaled[::-1]


def each_row(x: Table) -> Table:
    return (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)


@pytest.mark.parametrize(
    "tables",
    [
        fitted_once(StandardScaler(), CANCER),
        fitted_once(MinMaxScaler(), CANCER),
        fitted_once(RobustScaler(), CANCER),
        fitted_once(PCA(5, whiten=True), CANCER),
        same(CANCER),
        patients(),
        shuffled(CANCER),
        shuffled(each_row(CANCER)),
        # Pixels reach 0 and 1 in many images, and classes are nothing else.
        shuffled(load_digits().data / 16),
        shuffled(np.eye(10)[load_digits().target]),
        shuffled(np.random.default_rng(0).normal(size=(900, 3))),
        shuffled(np.random.default_rng(0).random((900, 3))),
        shuffled(np.full((90, 3), np.nan)),
        shuffled(np.zeros((90, 3))),
        (CANCER[:300], WINE),
    ],
)
def test_other_tables_say_nothing(tables: tuple[Table, Table]) -> None:
    assert told(*tables) == [None]


def test_images_and_sequences_are_not_read() -> None:
    x = np.zeros((40, 3, 4), np.float32)
    scales = Scales(x, np.arange(30))
    assert scales.compare(x, np.arange(30, 40)) is None
    empty = np.empty((0, 0))
    assert Scales(empty, np.arange(3)).compare(empty, np.arange(3)) is None
