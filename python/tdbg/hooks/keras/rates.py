"""The learning rates of a training: numbers, variables or schedules of Keras.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tdbg.capture.naming import group_scalar_name, scalar_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.keras.backend import Backend, State, number_in
from tdbg.hooks.keras.optimizers import accumulates_over, inner_of
from tdbg.modes import TRAINING, ModeKeys

__all__ = ["LearningRates", "Rates"]

# Learning rates by the names of their scalars.
Rates = tuple[tuple[str, float], ...]


class LearningRates:
    """Reads the learning rates of the optimizers of one model.

    Args:
        session: Says which are recorded.
        backend: Reads numbers.
        optimizers: Returns the optimizers.
    """

    def __init__(
        self, session: Session, backend: Backend, optimizers: Callable[[], list[Any]]
    ) -> None:
        self._session = session
        self._backend = backend
        self._optimizers = optimizers
        # Whether they are recorded, by the numbers of their optimizers.
        self._requested: dict[int, bool] = {}

    def refresh(self) -> None:
        """Forget what is recorded: collections have changed."""
        self._requested.clear()

    def due(self, mode: ModeKeys, state: State) -> Rates:
        """The learning rates, if the next step records them."""
        session = self._session
        if mode not in TRAINING or session.training is not None:
            return ()
        if not session.scalars_due(mode, session.next_step(mode)):
            return ()
        return self._read(state, enumerate(self._optimizers()))

    def record(
        self, context: StepContext, state: State, optimizer: Any, number: int
    ) -> None:
        """Record the learning rate of one optimizer, if the step records any.

        Args:
            context: The step.
            state: The variables before it.
            optimizer: The optimizer.
            number: Its number in the training.
        """
        step = context.step
        if self._session.scalars_due(step.mode, step.mode_step):
            for name, rate in self._read(state, [(number, optimizer)]):
                self._session.record_number(context, name, rate)

    def _read(self, state: State, optimizers: Iterable[tuple[int, Any]]) -> Rates:
        session, rates = self._session, []
        for number, optimizer in optimizers:
            name = group_scalar_name(number, "group_0", "lr")
            requested = self._requested.get(number)
            if requested is None:
                requested = session.captures(scalar_name(name), Role.SCALAR)
                self._requested[number] = requested
            if requested:
                rates.append((name, self._rate(inner_of(optimizer), state)))
        return tuple(rates)

    def _rate(self, optimizer: Any, state: State) -> float:
        """The learning rate of an optimizer, as of this state."""
        rate = optimizer._learning_rate
        if hasattr(rate, "assign"):
            (value,) = state.read([rate])
        elif hasattr(rate, "get_config"):  # A schedule.
            (iterations,) = state.read([optimizer._iterations])
            value = rate(
                int(number_in(self._backend, iterations)) // accumulates_over(optimizer)
            )
        else:
            value = rate()
        return number_in(self._backend, value)
