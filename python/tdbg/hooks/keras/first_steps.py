"""Facts of the first steps of a model of Keras, which no statistic shows.

The running statistics of a normalization forget all but the last batch if its momentum
was meant for another framework.  A step that was compiled before you froze layers goes
on training them.  A softmax over a single output is always 1.  And weight decay that
exempts biases by their name decays the scales of normalizations.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.config.kinds import NORMS, REGRESSIONS, Kind
from tdbg.hooks.keras.backend import Backend, State
from tdbg.hooks.keras.kinds import activation_of, kind_of
from tdbg.hooks.keras.losses import LossFunction
from tdbg.hooks.keras.names import Paths
from tdbg.hooks.keras.optimizers import inner_of
from tdbg.hooks.keras.program import TracedStep
from tdbg.hooks.keras.variables import Parameter, Variables, layers_of
from tdbg.modes import TRAIN
from tdbg.run.loss_facts import LossFact, LossFault
from tdbg.run.observations import Fault, Observation

__all__ = ["FirstSteps", "last_layer"]

# Keras's momentum is the weight of the past; others call that of the batch so.
_OF_ANOTHER = 0.2
# Looks that show how far statistics jump, or that frozen variables change.
_ENOUGH_JUMPS, _ENOUGH_STEPS = 4, 3
# Steps after which a normalization that is trained must have been fed.
_ENOUGH_FOR_FEEDING = 6
# Layers and variables that are looked at; elements of a variable; what is named.
_MOST_LAYERS, _MOST_VARIABLES, _MOST_ELEMENTS, _MOST_NAMED = 16, 8, 1 << 20, 8


# Layers whose weights are to be decayed, if anything is.
_OF_WEIGHTS = frozenset(
    {Kind.LINEAR, Kind.CONV, Kind.CONV_TRANSPOSE, Kind.RNN, Kind.GRU, Kind.LSTM}
)


# Between which an activation lies.
_BOUNDS = {
    "sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "relu": (0.0, math.inf),
    "softplus": (0.0, math.inf),
}
# Batches that are looked at, targets of each, and how many must be out of reach, by
# which share of the width of all.
_MOST_BATCHES, _MOST_TARGETS, _LEAST_TARGETS = 4, 4096, 32
_ENOUGH, _BEYOND = 0.18, 0.1


# Pixels that a batch has at least, and how much they differ; the scale of bytes.
_LEAST_PIXELS, _SPREAD, _OF_BYTES = 256, 0.01, 1 / 100


class FirstSteps:
    """Looks at a model as its first steps, and those of each ``fit``, end.

    Args:
        session: Receives what is seen.
        backend: Reads variables.
        variables: The variables of the model.
        paths: Names its layers.
        optimizers: Returns the optimizers that train it.

    Attributes:
        targets: Looks at the targets of its first batches.
        program: Watches the first step that is traced.
    """

    def __init__(
        self,
        session: Session,
        backend: Backend,
        variables: Variables,
        paths: Paths,
        optimizers: Callable[[], Sequence[Any]],
    ) -> None:
        self._session = session
        self._backend = backend
        self._variables = variables
        self._paths = paths
        self._optimizers = optimizers
        self.targets = TargetRange()
        self.program = TracedStep(session, paths)
        self._has_inputs = False
        # Normalizations that follow each batch; None: nobody has looked for them.
        self._layers: list[Any] | None = None
        self._statistics: list[NDArray[Any]] | None = None
        self._jumps: list[float] = []
        # Which variables were trained as the step was compiled, by their ids.
        self._compiled: dict[int, bool] = {}
        # Names and variables that were frozen since, or freed, with their values.
        self._frozen: list[tuple[str, Any]] = []
        self._freed: list[tuple[str, Any]] = []
        self._values: list[NDArray[Any]] | None = None
        self._n_steps = 0
        # Steps that are over, and normalizations that may be fed by none of them, with
        # their parameters as they were; None: nobody has looked for them.
        self._n_ended = 0
        self._unfed: list[tuple[Any, list[NDArray[Any]]]] | None = None

    @property
    def wants_steps(self) -> bool:
        """Whether the next steps are to be shown one by one."""
        return bool(self._layers or self._frozen or self._freed or self._unfed)

    def compiled(self) -> None:
        """Keras has made the step of training anew, with the flags that hold now."""
        self._compiled = {
            id(each.variable): bool(each.variable.trainable)
            for each in self._variables.tracked_parameters()
        }
        self._frozen, self._freed = [], []

    def fit_begins(self) -> None:
        """Look for layers that were frozen since the step was compiled.

        Only ``fit`` asks: in loops of their own, programs freeze a judge for the sake
        of another model, and train it by the step that was compiled before.
        """
        self._values, self._n_steps = None, 0
        self._frozen = [
            (each.weight.name, each.variable)
            for each in self._variables.tracked_parameters()
            if self._compiled.get(id(each.variable)) and not each.variable.trainable
        ]
        self._freed = [
            (each.weight.name, each.variable)
            for each in self._variables.tracked_parameters()
            if self._compiled.get(id(each.variable)) is False
            and each.variable.trainable
        ]

    def step_ended(self, model: Any, state: State) -> None:
        """Look at a step of training that is over.

        Args:
            model: The model.
            state: The variables as the step has left them.
        """
        if self._layers is None:
            self._layers = list(_following_each_batch(model))
            for optimizer in map(inner_of, self._optimizers()):
                self._look_at_decay(optimizer)
        if self._layers:
            self._look_at_statistics(state)
        if self._frozen:
            self._look_at_frozen(state)
        elif self._freed:
            self._look_at_freed(state)
        if self._unfed is None or self._unfed:
            self._look_at_unfed(model, state)

    def see_inputs(self, model: Any, batch: Any) -> None:
        """Look whether the first layer scales bytes that were scaled before."""
        if self._has_inputs:
            return
        self._has_inputs = True
        layer = _scaling_bytes(model)
        given: Any = batch[0] if len(batch) else None
        if len(getattr(given, "shape", ())):
            self.program.n_samples = int(given.shape[0])
        if layer is None or not hasattr(given, "__array__"):
            return
        inputs = np.asarray(given)
        if inputs.dtype.kind != "f" or inputs.size < _LEAST_PIXELS:
            return
        low, high = float(inputs.min()), float(inputs.max())
        if -1 <= low < high <= 1 and float(inputs.std()) > _SPREAD:
            name = self._paths.of_layer(layer)
            numbers = {"highest": high, "scale": float(layer.scale)}
            self._observe(Fault.RESCALED_TWICE, (name,), numbers)

    # ---- inside ------------------------------------------------------------------

    def _read(self, variables: Sequence[Any], state: State) -> list[NDArray[Any]]:
        arrays = map(self._backend.array, state.read(variables))
        return [np.array(each, np.float64) for each in arrays if each is not None]

    def _look_at_decay(self, optimizer: Any) -> None:
        """Report normalizations that an optimizer decays, if it exempts their like.

        It has stepped, so that it knows what it decays.
        """
        decay = getattr(optimizer, "weight_decay", None)
        if not decay:
            return
        held = {id(each) for each in optimizer._trainable_variables}
        decayed: list[Parameter] = []
        exempt: list[Parameter] = []
        for each in self._variables.tracked_parameters():
            if id(each.variable) in held and each.variable.trainable:
                is_decayed = optimizer._use_weight_decay(each.variable)
                (decayed if is_decayed else exempt).append(each)
        norms = [each for each in decayed if kind_of(each.layer) in NORMS]
        if not norms or not _is_by_kind(decayed, exempt):
            return
        kinds = {kind_of(each.layer) for each in norms}
        kind = kinds.pop() if len(kinds) == 1 else None
        self._session.observe(
            Observation(
                Fault.DECAYED_NORMALIZATION,
                max(0, self._session.latest_step(TRAIN)[0]),
                tuple(each.weight.name for each in norms[:_MOST_NAMED]),
                {"decay": float(decay), "parameters": float(len(norms))},
                {"optimizer": type(optimizer).__name__, "kind": str(kind or "")},
            )
        )

    def _look_at_statistics(self, state: State) -> None:
        layers = self._layers or []
        asked = [
            each
            for layer in layers
            for each in (layer.moving_mean, layer.moving_variance)
        ]
        before, self._statistics = self._statistics, self._read(asked, state)
        if before is None:
            return
        self._jumps.append(
            max(
                _distance(before[i : i + 2], self._statistics[i : i + 2])
                for i in range(0, len(asked), 2)
            )
        )
        if len(self._jumps) < _ENOUGH_JUMPS:
            return
        self._layers, self._statistics = [], None
        if not any(self._jumps):
            return  # No batch of training reaches them.
        names = tuple(self._paths.of_layer(each) for each in layers)
        numbers = {
            "distance": median(self._jumps[1:]),
            "layers": float(len(names)),
            "momentum": float(layers[0].momentum),
        }
        self._observe(Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK, names, numbers)

    def _look_at_unfed(self, model: Any, state: State) -> None:
        """Report normalizations that are trained while their statistics stay as made.

        Their parameters must have changed, so that the loss depends on them.
        """
        self._n_ended += 1
        if self._unfed is None:
            found = list(_maybe_unfed(model))[:_MOST_LAYERS]
            adapted = [each for each in found if hasattr(each, "adapt_mean")]
            self._look_at_adapted(adapted, state)
            self._unfed = [
                (each, self._read(each.trainable_weights, state))
                for each in found
                if each not in adapted and self._is_as_made(each, state)
            ]
            return
        if self._n_ended < _ENOUGH_FOR_FEEDING:
            return
        unfed, self._unfed = self._unfed, []
        layers = [
            layer
            for layer, before in unfed
            if self._is_as_made(layer, state)
            and any(
                not np.array_equal(one, other)
                for one, other in zip(
                    before, self._read(layer.trainable_weights, state), strict=True
                )
            )
        ]
        if layers:
            names = tuple(self._paths.of_layer(each) for each in layers)
            # With a momentum of 1, batches are normalized by their own statistics.
            is_off = all(each.momentum == 1 for each in layers)
            numbers = {"layers": float(len(names))}
            how = "momentum" if is_off else "running"
            self._observe(Fault.NEVER_FED, names, numbers, {"how": how})

    def _look_at_adapted(self, layers: Sequence[Any], state: State) -> None:
        names = tuple(
            self._paths.of_layer(layer)
            for layer in layers
            if _are_as_made(self._read([layer.adapt_mean, layer.adapt_variance], state))
        )
        if names:
            numbers = {"layers": float(len(names))}
            self._observe(Fault.NEVER_FED, names, numbers, {"how": "adapt"})

    def _is_as_made(self, layer: Any, state: State) -> bool:
        asked = [layer.moving_mean, layer.moving_variance]
        return _are_as_made(self._read(asked, state))

    def _look_at_frozen(self, state: State) -> None:
        asked = [each for each in self._frozen if _size(each[1]) <= _MOST_ELEMENTS]
        asked = asked[:_MOST_VARIABLES]
        values = self._read([variable for _, variable in asked], state)
        if self._values is None:
            self._values = values
            return
        self._n_steps += 1
        changed = tuple(
            name
            for (name, variable), one, other in zip(
                asked, self._values, values, strict=True
            )
            if not variable.trainable and not np.array_equal(one, other, equal_nan=True)
        )
        if not changed and self._n_steps < _ENOUGH_STEPS:
            return
        n_frozen, self._frozen, self._values = len(self._frozen), [], None
        if changed:
            n = n_frozen if len(changed) == len(asked) else len(changed)
            numbers = {"steps": float(self._n_steps), "parameters": float(n)}
            self._observe(Fault.FREEZING_NOT_COMPILED, changed, numbers)

    def _look_at_freed(self, state: State) -> None:
        """Report variables that are to be trained again, and that steps leave alone."""
        asked = [each for each in self._freed if _size(each[1]) <= _MOST_ELEMENTS]
        asked = asked[:_MOST_VARIABLES]
        values = self._read([variable for _, variable in asked], state)
        if self._values is None:
            self._values = values
            return
        self._n_steps += 1
        stays = all(map(np.array_equal, self._values, values))
        if stays and self._n_steps < _ENOUGH_STEPS:
            return
        names, n = tuple(name for name, _ in asked), len(self._freed)
        self._freed, self._values = [], None
        if stays and names:
            numbers = {"steps": float(self._n_steps), "parameters": float(n)}
            words = {"how": "freed"}
            self._observe(Fault.FREEZING_NOT_COMPILED, names, numbers, words)

    def _observe(
        self,
        fault: Fault,
        names: tuple[str, ...],
        numbers: dict[str, float],
        words: dict[str, str] | None = None,
    ) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        self._session.observe(
            Observation(fault, step, names[:_MOST_NAMED], numbers, words or {})
        )


def _scaling_bytes(model: Any) -> Any:
    """Return the layer that scales bytes before any other changes them; None: none."""
    layers = list(getattr(model, "layers", ())) if hasattr(model, "outputs") else []
    for layer in layers:
        name = type(layer).__name__
        if name == "Rescaling":
            scale = getattr(layer, "scale", None)
            is_of_bytes = isinstance(scale, float) and 0 < scale <= _OF_BYTES
            return layer if is_of_bytes else None
        if hasattr(layer, "layers"):
            return _scaling_bytes(layer)
        if name != "InputLayer":
            return None
    return None


def _following_each_batch(model: Any) -> Iterator[Any]:
    """Yield normalizations whose statistics are nearly those of the latest batch."""
    n = 0
    for layer in layers_of(model):
        momentum = getattr(layer, "momentum", None)
        if kind_of(layer) is not Kind.BATCH_NORM or not isinstance(momentum, float):
            continue
        has_statistics = layer.built and getattr(layer, "moving_mean", None) is not None
        if has_statistics and layer.trainable and 0 < momentum <= _OF_ANOTHER:
            n += 1
            if n <= _MOST_LAYERS:
                yield layer


def _maybe_unfed(model: Any) -> Iterator[Any]:
    """Yield normalizations that training should feed, or that were to be adapted."""
    for layer in layers_of(model):
        if not layer.built:
            continue
        if type(layer).__name__ == "Normalization":
            if getattr(layer, "adapt_mean", None) is not None:
                yield layer
        elif kind_of(layer) is Kind.BATCH_NORM and layer.trainable:
            has_statistics = getattr(layer, "moving_mean", None) is not None
            if has_statistics and layer.trainable_weights:
                yield layer


def _are_as_made(statistics: Sequence[NDArray[Any]]) -> bool:
    """Return whether all means are 0 and all variances 1, to the last bit."""
    if len(statistics) != 2:
        return False
    mean, variance = statistics
    return not mean.any() and bool((variance == 1.0).all())


def _is_by_kind(decayed: Sequence[Parameter], exempt: Sequence[Parameter]) -> bool:
    """Return whether weights are decayed, and biases or normalizations are exempt."""
    if any(map(_is_weight, exempt)):
        return False
    return any(map(_is_weight, decayed)) and any(map(_is_exemptible, exempt))


def _is_weight(parameter: Parameter) -> bool:
    is_of_weights = kind_of(parameter.layer) in _OF_WEIGHTS
    return is_of_weights and len(parameter.variable.shape) > 1


def _is_exemptible(parameter: Parameter) -> bool:
    """Return whether it is a bias, or a parameter of a normalization."""
    is_of_norm = kind_of(parameter.layer) in NORMS
    return is_of_norm or parameter.weight.role is Role.BIAS


def _size(variable: Any) -> int:
    return int(np.prod(variable.shape))


def _distance(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]]) -> float:
    """Return how far means are apart, in deviations, on average over the channels."""
    deviations = np.sqrt(np.maximum(np.maximum(one[1], other[1]), 1e-24))
    return float((np.abs(one[0] - other[0]) / deviations).mean())


class TargetRange:
    """Compares the targets of the first batches with what the last layer can give."""

    def __init__(self) -> None:
        self._targets: list[Any] = []
        self._n_looks = 0
        self.fact: LossFact | None = None

    @property
    def wants_batches(self) -> bool:
        """Whether the next batch is to be shown."""
        return len(self._targets) < _MOST_BATCHES

    def see(self, model: Any, losses: Sequence[LossFunction], batch: Any) -> bool:
        """Look at a batch; return whether a fault is new.

        Args:
            model: The model.
            losses: Its losses.
            batch: Inputs, targets and perhaps weights.
        """
        self._n_looks += 1
        if not losses and self._n_looks < _MOST_BATCHES:
            return False  # Keras makes them in its first trace.
        last = last_layer(model)
        bounds = None if last is None else _BOUNDS.get(_function_of(last) or "")
        is_judged = len(losses) == 1 and losses[0].kind in REGRESSIONS | {Kind.BCE}
        if bounds is None or not is_judged or len(batch) < 2:
            self._targets = [()] * _MOST_BATCHES
            return False
        given = np.asarray(batch[1])
        if given.dtype.kind not in "biuf" or not np.isfinite(given).all():
            self._targets = [()] * _MOST_BATCHES
            return False
        self._targets.append(given.ravel()[:_MOST_TARGETS].astype(np.float64))
        targets = np.concatenate(self._targets)
        if self.fact is not None or targets.size < _LEAST_TARGETS:
            return False
        low, high = float(targets.min()), float(targets.max())
        margin = _BEYOND * (high - low)
        beyond = (targets < bounds[0] - margin) | (targets > bounds[1] + margin)
        n = int(beyond.sum())
        if n < _ENOUGH * targets.size:
            return False
        counts = n, int(targets.size)
        self.fact = LossFact(
            LossFault.TARGETS_OUT_OF_REACH,
            _function_of(last) or "",
            (counts, (math.floor(low), math.ceil(high))),
        )
        return True


def last_layer(model: Any) -> Any:
    """Return the layer that makes the only output of a model; None: unknown."""
    outputs: Sequence[Any] = getattr(model, "outputs", None) or ()
    if len(outputs) != 1:
        return None
    return getattr(getattr(outputs[0], "_keras_history", None), "operation", None)


def _function_of(layer: Any) -> str | None:
    if type(layer).__name__ == "Softmax":
        return "softmax"
    # A ReLU with a bound or a slope is none here.
    return activation_of(layer)
