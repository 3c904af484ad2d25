"""Arrays of NumPy as capture sees them: their places, and their units."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tdbg.capture.adapter import UnitSummarySpec, array_ref


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_the_small_floats_of_frameworks_go_by_their_names(dtype: type) -> None:
    array = np.arange(6.0).astype(dtype).reshape(2, 3)
    ref = array_ref(array)
    assert ref is not None
    assert (ref.dtype, ref.shape, ref.item_size) == (
        np.dtype(dtype).name,
        (2, 3),
        array.itemsize,
    )
    assert ref.pointer == array.ctypes.data


@pytest.mark.parametrize("value", [[[1], [2, 3]], object(), 1j, np.zeros(2, "V4")])
def test_what_has_no_plain_elements_has_no_place(value: object) -> None:
    assert array_ref(value) is None


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (UnitSummarySpec(), [0, 1, 1, 1]),
        (UnitSummarySpec(units_last=True), [0, 1, 2, 3]),
        (UnitSummarySpec(rows_are_units=True), [0, 0, 0, 0]),
    ],
)
def test_units_are_numbered_by_channels_wherever_these_stand(
    spec: UnitSummarySpec, axes: list[int]
) -> None:
    assert [spec.axis(n) for n in (1, 2, 3, 4)] == axes
