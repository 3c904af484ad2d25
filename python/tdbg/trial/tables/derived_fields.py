"""Columns that are computed of the fields of statistics rows.

Thread safety: functions over values.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tdbg.stats.row_fields import EXTREMES, FIELDS, NOT_FINITE_COUNTS

__all__ = ["DERIVED", "Fields", "derived", "fields_for"]

#: Columns of rows, by field.
Fields: TypeAlias = dict[str, NDArray[Any]]

_FINITE = ("count", *NOT_FINITE_COUNTS)
#: What is computed of the fields of a row, and of which.
DERIVED = {
    "std": ("m2", *_FINITE),
    "rms": ("l2", *_FINITE),
    "abs_max": ("min", "max", *_FINITE),
    "zero_share": ("zero", "count"),
}


def fields_for(columns: Collection[str]) -> list[str]:
    """Return the fields of a row that these columns need, in their order."""
    asked = {*columns, *(each for name in columns for each in DERIVED.get(name, ()))}
    if asked.intersection(EXTREMES):
        asked.update(_FINITE)
    return [name for name in FIELDS if name in asked]


def derived(name: str, fields: Fields) -> NDArray[np.float64]:
    """Return a column that is computed of the fields of rows."""
    with np.errstate(invalid="ignore", divide="ignore"):
        count = fields["count"]
        if name == "zero_share":
            return np.asarray(fields["zero"] / count, np.float64)
        finite = count - sum(fields[each] for each in NOT_FINITE_COUNTS)
        if name == "abs_max":
            most = np.maximum(np.abs(fields["min"]), np.abs(fields["max"]))
            return np.where(finite > 0, most, np.nan)
        if name == "rms":
            return np.where(finite > 0, fields["l2"] / np.sqrt(finite), np.nan)
        m2 = fields["m2"]
        return np.asarray(np.sqrt(np.where(m2 >= 0, m2, np.nan) / finite))
