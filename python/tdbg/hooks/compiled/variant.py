"""The variant of a step that shows what happens inside of it.

A compiled step runs without Python, so that nothing inside can be captured.  For steps
that capture something there, the framework compiles the step again with taps: further
outputs, or calls that hand tensors over.  All other steps run the plain variant, which
tdbg does not touch.

Thread safety: the training's thread.

Errors: an error of the training passes through.  Any other error gives the variant up,
and the plain one runs in its place.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tdbg.capture.session import Session

__all__ = ["TappedVariant"]

_log = logging.getLogger("tdbg")
_Made = TypeVar("_Made")
_Result = TypeVar("_Result")


class TappedVariant(Generic[_Made]):
    """Makes the variant with taps, keeps it, and gives it up if it fails.

    Args:
        session: The session, which charges the second compilation to capture.
        step: The step as warnings name it, such as "the step train_step".
        left_out: What is not captured without the variant, as a clause.
        counts_faults: Whether to count an internal error for a variant that fails.

    Attributes:
        n_traces: How often the framework has traced the variant. Whatever is traced
            adds to it.
        has_worked: Whether a call of the present variant has succeeded.
        is_given_up: Whether steps run without taps, until other tensors are captured.

    Example::

        function = tapped.of(revision, lambda: jax.jit(with_taps))
        if function is None:
            return plain(*args)
        return tapped.run(lambda: function(*args), lambda: plain(*args), is_own)
    """

    def __init__(
        self,
        session: Session,
        step: str,
        left_out: str,
        *,
        counts_faults: bool = False,
    ) -> None:
        self._session = session
        self._step = step
        self._left_out = left_out
        self._counts_faults = counts_faults
        self._made: _Made | None = None
        self._key: Hashable = None
        self.n_traces = 0
        self.has_worked = self.is_given_up = False

    @property
    def made(self) -> _Made | None:
        """The variant; None if it has not been made yet, or no longer applies."""
        return self._made

    def of(self, key: Hashable, make: Callable[[], _Made]) -> _Made | None:
        """Return the variant for what is captured now; None if it was given up.

        Args:
            key: Stands for what is captured. For another key the variant is made anew,
                and has another chance.
            make: Makes the variant.
        """
        if key != self._key:
            self.forget()
            self._key = key
        if self._made is None and not self.is_given_up:
            self.has_worked = False
            try:
                self._made = make()
            except Exception as error:
                self._give_up(error)
        return self._made

    def forget(self) -> None:
        """Release the variant; it is made anew, if it can be, when a step needs it."""
        self._made, self._key, self.is_given_up = None, None, False

    def run(
        self,
        with_taps: Callable[[], _Result],
        without: Callable[[], _Result],
        is_own: Callable[[Exception], bool],
        *,
        compiles: bool = True,
    ) -> _Result:
        """Run a step with taps, or without where the variant cannot be compiled.

        Args:
            with_taps: Runs the variant.
            without: Runs the plain step.
            is_own: Returns whether an error is the training's own: the step may have
                begun to run, and must not run again.
            compiles: Whether a trace compiles. Otherwise the trace is the step itself,
                and its time is the training's.
        """
        start_ns, n_traces = time.perf_counter_ns(), self.n_traces
        session = self._session
        session.compiles_own = compiles
        try:
            result = with_taps()
        except Exception as error:
            if is_own(error):
                raise
            session.compiles_own = False
            result = without()  # Raises if the error is the training's after all.
            self._give_up(error)
            return result
        finally:
            session.compiles_own = False
        self.has_worked = True
        if compiles and self.n_traces > n_traces:
            self._account(time.perf_counter_ns() - start_ns)
        return result

    def _account(self, spent_ns: int) -> None:
        """Charge a second compilation to capture, and log it."""
        self._session.spend_once(spent_ns)
        with contextlib.suppress(Exception):
            _log.info(
                "tdbg compiled %s a second time, for the steps that it captures, in "
                "%.1f s",
                self._step,
                spent_ns / 1e9,
            )

    def _give_up(self, error: Exception) -> None:
        self.is_given_up, self._made = True, None
        if self._counts_faults:
            self._session.run(_raise, error)
        with contextlib.suppress(Exception):
            _log.warning(
                "%s does not compile together with tdbg's capture inside it, so %s: "
                "%s: %s",
                self._step,
                self._left_out,
                type(error).__name__,
                error,
            )


def _raise(error: Exception) -> None:
    raise error
