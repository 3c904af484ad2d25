"""Optimizers of Keras: their gradients, their state and their learning rates.

All gradients of a training come by one place, whatever its ``train_step`` is:
``optimizer.apply``.

Thread safety: the training's thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from tdbg.capture.naming import group_scalar_name, scalar_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.keras.backend import Backend, State, number_in
from tdbg.hooks.keras.names import state_of
from tdbg.hooks.keras.tracing import Patches, Taps
from tdbg.modes import TRAIN, TRAINING, ModeKeys
from tdbg.run.observations import Fault, Observation

__all__ = [
    "SKIPPED",
    "LearningRates",
    "Optimizers",
    "Rates",
    "TrainingOptimizers",
    "accumulates_over",
    "inner_of",
    "look_at_schedule",
    "optimizers_of",
    "states_of",
    "trains_as_built",
]

# The key of the tap that says whether a scaled step is skipped.
SKIPPED = "\0skipped"
# Schedules that end after a number of steps, which is meant for all of the training.
_ENDING = frozenset({"CosineDecay", "PolynomialDecay"})
_Key = Callable[[Any, Role], str | None]


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers of a model and of the models in it, in order, each once."""
    found: dict[int, Any] = {}
    for owner in model._flatten_layers():
        for each in _optimizers_in(owner):
            found.setdefault(id(each), each)
    return list(found.values())


def _optimizers_in(owner: Any) -> Iterator[Any]:
    for value in list(vars(owner).values()):
        for each in value if isinstance(value, list | tuple) else (value,):
            if hasattr(each, "apply_gradients") and hasattr(each, "update_step"):
                yield each


def inner_of(optimizer: Any) -> Any:
    """The optimizer inside of one that scales the loss, or else itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _is_built(optimizer: Any) -> bool:
    """Whether it was given variables."""
    return bool(inner_of(optimizer).built)


def trains_as_built(model: Any) -> bool:
    """Whether a model trains the variables that its optimizer was built with.

    Keras builds it as the step is first traced.  If the program then freezes or thaws
    layers and does not compile again, whatever is traced later is another step than
    the one that goes on.  Of a step that the program has written nothing is known.
    """
    optimizer = getattr(model, "optimizer", None)
    is_of_keras = type(model).train_step.__module__.split(".")[0] == "keras"
    if optimizer is None or not is_of_keras or not _is_built(optimizer):
        return True
    known = getattr(inner_of(optimizer), "_trainable_variables", None)
    return known is None or set(map(id, known)) == set(
        map(id, model.trainable_variables)
    )


def accumulates_over(optimizer: Any) -> int:
    """Over how many batches an optimizer accumulates gradients; 1: it does not."""
    return getattr(optimizer, "gradient_accumulation_steps", None) or 1


def states_of(
    optimizer: Any, parameters: Mapping[str, str]
) -> Iterator[tuple[str, str, Any]]:
    """The variables of an optimizer that belong to parameters.

    Args:
        optimizer: The optimizer.
        parameters: As for ``state_of``.

    Yields:
        The parameter, the state, and the variable.
    """
    for variable in inner_of(optimizer).variables:
        found = state_of(variable.path, parameters)
        if found is not None:
            yield *found, variable


class TrainingOptimizers:
    """The optimizers that train a model: its own, or those of a loop that it knows not.

    The model's own are looked up when they may have changed: that takes as long as a
    small step.
    """

    def __init__(self) -> None:
        self._given: list[weakref.ref[Any]] | None = None
        self._built: list[Any] = []
        self._others: list[Any] | None = None

    def add(self, optimizer: Any) -> None:
        """Know an optimizer that the model does not have."""
        self._given = [*(self._given or ()), weakref.ref(optimizer)]

    def look(self) -> None:
        """Look the model's own up anew: it may have been compiled again."""
        self._others = None

    def of(self, model: Any) -> list[Any]:
        """Those that live and were given variables; else the first one.

        A model that has its own optimizers was compiled with a default one, too.
        """
        if self._given is not None:
            return [each for ref in self._given if (each := ref()) is not None]
        if self._others is None or any(map(_is_built, self._others)):
            every = optimizers_of(model)
            self._built = [each for each in every if _is_built(each)]
            self._others = [each for each in every if not _is_built(each)]
        return self._built or self._others[:1]

    def stepping(self, model: Any) -> Any:
        """The one that is asked how many steps it has made, or None."""
        if self._given is not None:
            return next(iter(self.of(model)), None)
        return getattr(model, "optimizer", None)


class Optimizers:
    """Taps the gradients of the optimizers of one model.

    Args:
        operations: The operations of Keras (``keras.ops``).
    """

    def __init__(self, operations: Any) -> None:
        self._operations = operations
        # Only where there is a Keras.
        self._scope: Any = import_module("keras").StatelessScope

    def install(self, optimizer: Any, patches: Patches, taps: Taps, key: _Key) -> None:
        """Tap an optimizer's gradients: as it uses them, and before it clips them."""

        def make(apply: Callable[..., Any]) -> Callable[..., Any]:
            def tapped(grads: Any, trainable_variables: Any = None) -> Any:
                grads = list(grads)
                if trainable_variables is None:
                    variables = optimizer._trainable_variables
                else:
                    variables = trainable_variables = list(trainable_variables)
                taps.run(self.hold, optimizer, grads, variables, taps, key)
                return apply(grads, trainable_variables)

            return tapped

        def make_stateless(apply: Callable[..., Any]) -> Callable[..., Any]:
            def tapped(state: Any, grads: Any, trainable_variables: Any) -> Any:
                taps.run(self._hold_in_state, optimizer, state, grads, taps, key)
                return apply(state, grads, trainable_variables)

            return tapped

        patches.wrap(optimizer, "apply", make)
        if inner_of(optimizer) is not optimizer:
            # On JAX it decides inside of a branch whether to apply anything.
            patches.wrap(optimizer, "stateless_apply", make_stateless)

    def _hold_in_state(
        self, optimizer: Any, state: Any, grads: Any, taps: Taps, key: _Key
    ) -> None:
        mapping = list(zip(optimizer.variables, state, strict=True))
        with self._scope(state_mapping=mapping):
            self.hold(optimizer, grads, optimizer._trainable_variables, taps, key)

    def hold(
        self, optimizer: Any, grads: Any, variables: Any, taps: Taps, key: _Key
    ) -> None:
        """Hold the gradients that an optimizer is given, and whether it skips them."""
        pairs = [
            (gradient, variable)
            for gradient, variable in zip(grads, variables, strict=False)
            if gradient is not None
        ]
        chosen = [
            (key(variable, Role.GRADIENT), key(variable, Role.GRADIENT_UNCLIPPED))
            for _, variable in pairs
        ]
        if any(map(any, chosen)):
            unclipped = self._as_used(optimizer, pairs)
            clipped = _clipped(optimizer, unclipped)
            for keys, *gradients in zip(chosen, clipped, unclipped, strict=True):
                for name, gradient in zip(keys, gradients, strict=True):
                    if name is not None:
                        taps.hold(name, gradient)
        if inner_of(optimizer) is not optimizer:
            taps.hold(SKIPPED, self._is_skipped(optimizer, grads))

    def _as_used(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> list[Any]:
        """The gradients without the factor of the loss, over all micro-batches."""
        ops, inner = self._operations, inner_of(optimizer)
        grads = [gradient for gradient, _ in pairs]
        scale = getattr(optimizer, "loss_scale_factor", None)
        if inner is not optimizer:
            scale = optimizer.dynamic_scale if optimizer.built else None
            scale = optimizer.initial_scale if scale is None else scale
        if scale is not None:
            grads = [ops.divide(each, scale) for each in grads]
        n = accumulates_over(inner)
        if n > 1 and inner.built:
            grads = [
                ops.divide(ops.add(gradient, self._accumulated(inner, variable)), n)
                for gradient, (_, variable) in zip(grads, pairs, strict=True)
            ]
        return grads

    def _accumulated(self, optimizer: Any, variable: Any) -> Any:
        """Return the gradient that an optimizer accumulated before this batch."""
        index = optimizer._get_variable_index(variable)
        return optimizer._accumulated_gradients[index]

    def _is_skipped(self, optimizer: Any, grads: Any) -> Any:
        given = [each for each in grads if each is not None]
        return self._operations.logical_not(optimizer.check_finite(given))


def _clipped(optimizer: Any, grads: list[Any]) -> list[Any]:
    """The gradients as the optimizer clips them itself."""
    inner = inner_of(optimizer)
    settings = ("clipnorm", "global_clipnorm", "clipvalue")
    if all(getattr(inner, each, None) is None for each in settings):
        return grads
    return list(inner._clip_gradients(grads))


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


def look_at_schedule(
    session: Session, optimizers: Sequence[Any], params: Mapping[str, Any]
) -> None:
    """Report a schedule whose length is the number of epochs: Keras counts steps.

    Args:
        session: Receives what is seen.
        optimizers: Of the model.
        params: What Keras tells callbacks of ``fit``.
    """
    epochs, steps = params.get("epochs"), params.get("steps")
    if not isinstance(epochs, int) or not isinstance(steps, int) or steps < 2:
        return
    for optimizer in map(inner_of, optimizers):
        schedule = getattr(optimizer, "_learning_rate", None)
        name, length = type(schedule).__name__, getattr(schedule, "decay_steps", None)
        if name not in _ENDING or getattr(schedule, "cycle", False):
            continue
        warm_up = getattr(schedule, "warmup_steps", 0)
        if length == epochs > 1 and not warm_up:
            session.observe(
                Observation(
                    Fault.SCHEDULE_IN_EPOCHS,
                    max(0, session.latest_step(TRAIN)[0]),
                    (name,),
                    {"length": float(length), "batches": float(steps)},
                    {"setting": "decay_steps", "counts": "steps"},
                )
            )
