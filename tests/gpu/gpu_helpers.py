"""What the tests on a device share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg import _core
from tdbg.pytorch import Hook, ReductionConfig, SaveConfig
from tdbg.run.directory import writer_directories
from tdbg.stats.reference import row
from tdbg.stats.row_fields import COUNTS

EVERYTHING = SaveConfig(save_interval=1, statistics_interval=1)
ROWS_ONLY = SaveConfig(save_interval=10**9, statistics_interval=1)


def make_hook(run_dir: Path, **options: Any) -> Hook:
    """A hook that takes the rows of everything it is given, at every step."""
    settings: dict[str, Any] = {"min_free_bytes": 0}
    if "save_config" not in options:
        settings["save_config"] = ROWS_ONLY
        # Step 0 is on every schedule.
        settings["reduction_config"] = ReductionConfig(save_raw_tensor=False)
    return Hook(run_dir, **{**settings, **options})


class Rows:
    """The rows of a run, by name and step; and its values."""

    def __init__(self, run_dir: Path) -> None:
        self.reader = _core.RunReader(str(writer_directories(run_dir)[-1].path))
        assert self.reader.problems() == []
        self._names = {each.id: each for each in self.reader.definitions()}
        self.steps = self.reader.steps()
        self._rows = self.reader.rows()

    def of(self, name: str) -> dict[int, np.void]:
        """The last row of each step."""
        return {
            int(each["step"]): each
            for each in self._rows
            if self._names[int(each["definition"])].name == name
        }

    def values(self, name: str) -> dict[int, NDArray[Any]]:
        """Raw values by step."""
        found = {}
        for index, each in enumerate(self.reader.tensors()):
            definition = self._names[int(each["definition"])]
            if definition.name == name:
                dtype = np.dtype(getattr(ml_dtypes, definition.dtype, definition.dtype))
                raw = self.reader.read_tensor(index).view(dtype)
                found[int(each["step"])] = raw.reshape(definition.shape)
        return found


def assert_row(actual: np.void, array: NDArray[Any], what: str) -> None:
    """The row is the reference's, within the bounds of docs/statistics.md."""
    expected = row(array)
    for name in COUNTS:
        assert int(actual[name]) == getattr(expected, name), (what, name)
    infinite = expected.positive_infinity + expected.negative_infinity
    finite = expected.count - expected.nan - infinite
    if finite == 0:
        return
    kind = array.dtype.kind
    extremes = np.int64 if kind == "i" else np.uint64 if kind in "bu" else np.float64
    assert actual["min"].view(extremes) == expected.min, what
    assert actual["max"].view(extremes) == expected.max, what
    assert float(actual["abs_min"]) == expected.abs_min, what
    narrow = kind not in "biu" and array.dtype.itemsize < 8
    bound = 1e-7 if narrow else 1e-12
    tiny = 5e-324 * finite
    for name, relative in (("m2", 2 * bound), ("l1", bound), ("l2", bound)):
        off = abs(float(actual[name]) - getattr(expected, name))
        same = float(actual[name]) == getattr(expected, name)  # Infinities.
        assert same or off <= relative * abs(getattr(expected, name)) + tiny, (
            what,
            name,
        )
    error = abs(float(actual["mean"]) - expected.mean)
    assert math.isinf(expected.l1) or error <= bound * expected.l1 / finite + tiny, what


def assert_nothing_lost(hook: Hook) -> None:
    """Nothing was refused, dropped or failed."""
    counters = hook.counters()
    lost = {
        name: counters[name]
        for name in ("dropped", "failed", "refused_tensors", "internal_errors")
    }
    assert not any(lost.values()), lost


def assert_path(hook: Hook, takes_kernels: bool, device: str) -> None:
    """The tensors went the way that is tested."""
    states = hook.device_state()
    if takes_kernels:
        assert states[0]["is_usable"], states
        assert states[0]["rows"] > 0
    elif device == "cuda":
        assert not any(state["is_usable"] for state in states.values()), states
