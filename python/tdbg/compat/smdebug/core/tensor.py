"""``smdebug.core.tensor``: one tensor of a trial."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg import errors
from tdbg.compat.smdebug.exceptions import (
    InvalidWorker,
    ShapeUnavailableForStep,
    SMDebugValueError,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)
from tdbg.compat.smdebug.left_out import refuse
from tdbg.modes import ModeKeys
from tdbg.trial import StepState, TensorHandle

__all__ = ["StepState", "Tensor"]

# Reductions that rows do not have: they are computed from the value.
_OF_VALUES: dict[str, Callable[[Any], Any]] = {"prod": np.prod, "median": np.median}


class Tensor:
    """A tensor of a trial, by smdebug's methods.

    Attributes:
        name: Its name.
        original_name: The same name: tdbg does not rename tensors.
    """

    def __init__(self, handle: TensorHandle) -> None:
        self.name = handle.name
        self.original_name = handle.name
        self._handle = handle

    def __repr__(self) -> str:
        return f"Tensor({self.name!r})"

    def steps(
        self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False
    ) -> list[int]:
        """Steps at which its value or its statistics were saved."""
        return self._handle.steps(mode, show_incomplete_steps=show_incomplete_steps)

    def prev_steps(
        self, step: int, n: int | None = None, mode: ModeKeys = ModeKeys.GLOBAL
    ) -> list[int]:
        """Return its last *n* steps up to *step* inclusive; None or 0: all."""
        return self._handle.prev_steps(step, n or None, mode)

    def has_step(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL) -> bool:
        """Return whether it was saved at this step."""
        return step_num in self.steps(mode, show_incomplete_steps=True)

    def workers(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[str]:
        """Return the names of the workers that saved it at this step.

        Raises:
            TensorUnavailableForStep: If no worker did.
        """
        try:
            return self._handle.workers(step_num, mode)
        except errors.QueryError as error:
            raise TensorUnavailableForStep(self.name, step_num, mode) from error

    def value(
        self,
        step_num: int,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
    ) -> NDArray[Any]:
        """Return the raw value.

        Raises:
            StepUnavailable: If nothing was saved at this step, and nothing will be.
            StepNotYetAvailable: If the step may still come.
            TensorUnavailableForStep: If this tensor has no value at this step; its
                ``has_reductions`` says whether it has statistics.
            InvalidWorker: If this worker did not save the tensor.
        """
        with self._translated(step_num, mode, worker):
            chosen = worker or self._first_worker(step_num, mode)
            return self._handle.value(step_num, mode, chosen)

    def values(
        self, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[int, NDArray[Any]]:
        """Return all raw values by step."""
        steps = self._handle.steps(mode, what="values", worker=worker)
        return {step: self.value(step, mode, worker) for step in steps}

    def _first_worker(self, step: int, mode: ModeKeys) -> str | None:
        """The worker whose value is returned where none is named; None: all alike."""
        if not self._handle.is_of_samples:
            return None
        found = self._handle.workers(step, mode)
        return found[0] if len(found) > 1 else None

    def reduction_value(
        self,
        step_num: int,
        reduction_name: str,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002 - smdebug's name
    ) -> float:
        """Reduce all elements to one number, as NumPy does in float64.

        Args:
            step_num: The step.
            reduction_name: min, max, mean, std, variance, sum, l1 or l2; if the value
                was saved, also prod and median.
            mode: The mode that counts *step_num*.
            worker: The only worker whose elements count; None: all.
            abs: Whether to reduce the absolute values.

        Raises:
            SMDebugValueError: If there is no such reduction.
            TdbgError: As ``value`` does.
        """
        function = _OF_VALUES.get(reduction_name)
        if function is not None:
            value = self.value(step_num, mode, worker).astype(np.float64)
            return float(function(np.abs(value) if abs else value))
        with self._translated(step_num, mode, worker):
            return self._handle.reduction_value(
                step_num, reduction_name, mode, worker, abs
            )

    def reduction_values(
        self,
        step_num: int,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
    ) -> dict[tuple[str, bool], float]:
        """Return all reductions, by name and whether of the absolute values."""
        with self._translated(step_num, mode, worker):
            return self._handle.reduction_values(step_num, mode, worker)

    def shape(
        self,
        step_num: int,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
    ) -> tuple[int, ...]:
        """Its shape at this step.

        Raises:
            ShapeUnavailableForStep: If the tensor was not saved at this step.
            InvalidWorker: If there is no such worker.
        """
        with self._translated(step_num, mode, worker):
            return self._handle.shape(step_num, mode, worker)

    def shapes(
        self, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[int, tuple[int, ...]]:
        """Its shapes by step."""
        return {step: self.shape(step, mode, worker) for step in self.steps(mode)}

    @contextlib.contextmanager
    def _translated(
        self, step: int, mode: ModeKeys, worker: str | None
    ) -> Iterator[None]:
        """Raise smdebug's errors in the place of tdbg's."""
        try:
            yield
        except errors.ConfigurationError as error:
            raise SMDebugValueError(str(error)) from error
        except errors.StepNotYetAvailable as error:
            raise StepNotYetAvailable(step, mode) from error
        except (errors.StepUnavailable, errors.NoMoreData) as error:
            raise StepUnavailable(step, mode) from error
        except errors.InvalidWorker as error:
            raise InvalidWorker(str(worker)) from error
        except errors.ShapeUnavailableForStep as error:
            raise ShapeUnavailableForStep(self.name, step, mode) from error
        except errors.TensorUnavailableForStep as error:
            if worker is not None and self._others_saved(step, mode, worker):
                raise InvalidWorker(worker) from error
            rows = self._handle.steps(mode, "statistics", show_incomplete_steps=True)
            raise TensorUnavailableForStep(
                self.name, step, mode, step in rows
            ) from error

    def _others_saved(self, step: int, mode: ModeKeys, worker: str) -> bool:
        try:
            return worker not in self._handle.workers(step, mode)
        except errors.QueryError:
            return False


__getattr__ = refuse(__name__)
