"""A step that a framework compiles: when to run it plain, and when with taps.

Most steps capture nothing but losses.  They run the plain variant, and are only
counted: the session hears of many of them at once (``capture/light_steps.py``).

Thread safety: the training's thread.

Errors: nothing of tdbg raises into the training but ``TrainingStopped``.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from tdbg.capture.light_steps import LightSteps
from tdbg.capture.session import Session
from tdbg.hooks.compiled.batches import SamplesOf
from tdbg.hooks.compiled.variant import TappedVariant
from tdbg.modes import ModeKeys

__all__ = ["CompiledFunction", "CompiledStep"]

_Made = TypeVar("_Made")


class CompiledStep(ABC, Generic[_Made]):
    """A step in two variants; calling it is a step of the training.

    Args:
        session: The session.
        step: The step as warnings name it, such as "the step train_step".
        left_out: What is not captured if the step cannot be compiled with taps.
        counts_faults: Whether that counts as an internal error.
    """

    # Runs the plain variant.  An attribute, because a method would be a further call.
    _run_plain: Callable[..., Any]

    def __init__(
        self,
        session: Session,
        step: str,
        left_out: str,
        *,
        counts_faults: bool = False,
    ) -> None:
        self._session = session
        self._tapped: TappedVariant[_Made] = TappedVariant(
            session, step, left_out, counts_faults=counts_faults
        )
        # While nothing but losses is captured: the steps since the last event.
        self._light: LightSteps | None = None
        # While it is known where the batch is.
        self._samples_of: SamplesOf | None = None
        self._add_samples = session.clock.add_samples

    @property
    def n_traces(self) -> int:
        """How often the variant with taps was traced."""
        return self._tapped.n_traces

    @property
    def is_given_up(self) -> bool:
        """Whether the step could not be compiled with taps, and runs without."""
        return self._tapped.is_given_up

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; return what it returns, and raise what it raises.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        light = self._light
        if light is not None:
            # A loop of training spends its time here: the fewer calls, the better.
            if self._trains() and light.goes_on():
                try:
                    result = self._run_plain(*args, **kwargs)
                except BaseException as error:
                    self._light = None
                    self._light_step_failed(error, args)
                    raise
                if self._samples_of is not None:
                    self._add_samples(self._samples_of(args, kwargs))
                light.add(result)
                return result
            self._light = None
        return self._run(args, kwargs)

    def _note_samples(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Add the batch of a call to the step, or to the evaluation, if it is known."""
        if self._samples_of is not None:
            self._add_samples(self._samples_of(args, kwargs))

    @abstractmethod
    def _trains(self) -> bool:
        """Return whether a call now is a step of training."""

    @abstractmethod
    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step that the session hears of, in the variant that it needs.

        Set ``_light`` if the steps that follow need only be counted.
        """

    @abstractmethod
    def _light_step_failed(self, error: BaseException, args: tuple[Any, ...]) -> None:
        """Tell the session of a step that was only counted, and has raised."""


class CompiledFunction(CompiledStep[_Made]):
    """A step that the user has written as a function.

    Args:
        session: The session.
        function: The function of the user.
        plain: The function as the framework compiles it, without tdbg.
        mode: The mode of its steps; None: the present mode.
        options: What the framework compiles with.

    Attributes:
        plain: As given. Attributes that this object lacks are those of *plain*.
    """

    def __init__(
        self,
        session: Session,
        function: Callable[..., Any],
        plain: Callable[..., Any],
        mode: ModeKeys | None,
        options: Mapping[str, Any],
    ) -> None:
        functools.update_wrapper(self, function)
        name = getattr(function, "__name__", "of the training")
        super().__init__(session, f"the step {name}", "tdbg captures nothing inside it")
        self.plain = self._run_plain = plain
        self._function = function
        self._mode = mode
        self._options = dict(options)

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # Of a copy that is not complete yet.
            raise AttributeError(name)
        return getattr(self.plain, name)
