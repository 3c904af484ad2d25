"""The part of ``tdbg._core`` that taps of compiled programs go through.

No module of its own: cpp/bindings/bind_taps.cc and bind_ffi.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Names of the handlers that show one tensor to the core, and several, for XLA.
TAP_TARGET: str
TAP_ALL_TARGET: str

def tap_handlers() -> dict[str, Any]:
    """The handlers by their names, in capsules that XLA takes."""

class TapPlan:
    """What is taken of taps at a step.

    A request has: number of the tap, whether its row is taken, up to how many bytes
    its elements are copied, whether units are counted, low, high, rows_are_units.
    """

    def __init__(
        self,
        requests: Sequence[tuple[int, bool, int, bool, float, float, bool]],
        precise: bool,
        most_bytes: int,
    ) -> None: ...

class TapTensors:
    """Numbers of the tensors that taps have shown, from 0."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def describe(
        self, number: int
    ) -> tuple[int, int, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Tap, part, dtype, shape, global shape and global offset of a tensor; the
        last two are empty where it is whole, or nobody knows."""

def open_tap_step(plan: TapPlan) -> int:
    """The ticket of a new step; 0: too many are open."""

def replace_tap_plan(ticket: int, plan: TapPlan) -> None:
    """Take something else; before the program of the step runs."""

def close_tap_step(
    ticket: int, plan: TapPlan, tensors: TapTensors
) -> tuple[
    NDArray[np.int32],
    NDArray[np.uint64],
    list[tuple[int, NDArray[np.uint8] | None, NDArray[np.uint64] | None]],
]:
    """What a step has shown, by tap and part: the numbers of tensors with rows, these
    rows, and numbers with elements and counts of units."""

def show_tensor(
    ticket: int,
    tap: int,
    array: Any,
    part: int = 0,
    global_shape: Sequence[int] = (),
    global_offset: Sequence[int] = (),
) -> None:
    """Show a tensor in C order, as the handler does."""

def n_taps_lost() -> int:
    """How many tensors could not be kept, in this process."""

def n_tap_steps_open() -> int:
    """How many steps are open, in this process."""
