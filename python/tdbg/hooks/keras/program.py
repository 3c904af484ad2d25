"""What the step of a training does while it is traced: its calls, and its graph.

A ``train_step`` of one's own has to hand on what Keras's does by itself: the mode of
training, the losses of layers, the weights of samples, and the scale of a loss in half
precision.  On TensorFlow the graph of the step shows, whoever wrote them, differences
between all pairs, a softmax of a softmax, and noise that is multiplied by a variance.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tdbg.capture.naming import tensors_in
from tdbg.capture.session import Session
from tdbg.config.kinds import Kind
from tdbg.hooks.keras.kinds import kind_of
from tdbg.hooks.keras.names import Paths
from tdbg.hooks.keras.replicas import n_replicas_of
from tdbg.hooks.keras.tracing import Patches
from tdbg.hooks.keras.variables import layers_of
from tdbg.modes import TRAIN
from tdbg.run.loss_facts import LossFact, LossFault
from tdbg.run.observations import Fault, Observation

__all__ = ["NOISE", "TracedStep"]

NOISE = frozenset(
    {
        "AlphaDropout",
        "Dropout",
        "GaussianDropout",
        "GaussianNoise",
        "SpatialDropout1D",
        "SpatialDropout2D",
        "SpatialDropout3D",
    }
)
"""Layers that draw when they are active, and only then."""

_OWN = "keras.src."
_MOST_NAMED, _MOST_OPERATIONS, _MOST_TENSORS = 8, 20_000, 64
_READING_LOSSES = "_get_own_losses", "_get_regularization_losses"
# How a source says that the mode of evaluation is meant.
_MEANT = "training=False", "training = False"


class TracedStep:
    """Watches the first step that is traced.

    Args:
        session: Receives what is seen.
        paths: Names layers.

    Attributes:
        facts: What its graph says is wrong with the loss.
        n_samples: Samples of the first batch; 0: unknown.
    """

    def __init__(self, session: Session, paths: Paths) -> None:
        self._session = session
        self._paths = paths
        self._is_done = False
        self.facts: list[LossFact] = []
        self.n_samples = 0

    def watching(self, step: Callable[..., Any], model: Any) -> Callable[..., Any]:
        """Return a step that does the same, and is watched once.

        Args:
            step: The step of training.
            model: The model.
        """
        if self._is_done or n_replicas_of(model) > 1:
            return step

        @functools.wraps(step)
        def watched(*args: Any) -> Any:
            if self._is_done:
                return step(*args)
            self._is_done = True
            calls, patches = _Calls(), Patches()
            try:
                self._session.run(calls.install, model, patches)
                returned = step(*args)
            finally:
                patches.undo()
            self._session.run(self._look, model, calls, args)
            return returned

        return watched

    def _look(self, model: Any, calls: _Calls, args: Sequence[Any]) -> None:
        data = args[-1] if args else None
        graph = _graph_of(data)
        if _is_own_step(model) and calls.n_applied:
            self._look_at_mode(model, calls)
            self._look_at_losses(model, calls)
            if calls.scales and not calls.n_scaled:
                numbers = {"steps": 1.0}
                name = type(model.optimizer).__name__
                self._tell(Fault.LOSS_NOT_SCALED, (name,), numbers, {})
            if graph is not None:
                self._look_at_weights(data)
        if graph is not None:
            operations = graph.get_operations()
            if len(operations) <= _MOST_OPERATIONS:
                found = _Graph(operations, max(2, self.n_samples))
                self.facts = list(found.facts())
                if found.takes_variance():
                    fault = Fault.VARIANCE_AS_DEVIATION
                    self._tell(fault, (str(model.name),), {}, {})

    def _look_at_mode(self, model: Any, calls: _Calls) -> None:
        """Report dropout that no call of the step has activated."""
        dropping = [layer for layer in calls.modes if type(layer).__name__ in NOISE]
        if not dropping or any(calls.modes.values()):
            return
        source = _source_of(type(model).train_step)
        if not source or any(each in source for each in _MEANT):
            return
        names = tuple(self._paths.of_layer(each) for each in calls.modes)
        kinds = dict.fromkeys(type(each).__name__ for each in calls.modes)
        words = {"layers": ", ".join(kinds), "how": "own step"}
        numbers = {"layers": float(len(names))}
        self._tell(Fault.TRAINED_IN_EVALUATION, names, numbers, words)

    def _look_at_losses(self, model: Any, calls: _Calls) -> None:
        """Report losses of layers that the step does not read."""
        if calls.n_read:
            return
        names = [
            self._paths.of_layer(layer)
            for layer in layers_of(model)
            if _has_losses(layer)
        ]
        if names:
            numbers = {"layers": float(len(names))}
            self._tell(Fault.LOSSES_NOT_READ, tuple(names), numbers, {})

    def _look_at_weights(self, data: Any) -> None:
        """Report weights of samples that nothing is computed of."""
        if not isinstance(data, tuple) or len(data) != 3 or data[2] is None:
            return
        weights = tensors_in(data[2], _is_symbolic, _MOST_TENSORS)
        targets = tensors_in(data[1], _is_symbolic, _MOST_TENSORS)
        if not weights or any(each.consumers() for each in weights):
            return
        if any(each.consumers() for each in targets):
            self._tell(Fault.WEIGHTS_NOT_READ, ("train_step",), {}, {})

    def _tell(
        self,
        fault: Fault,
        names: tuple[str, ...],
        numbers: dict[str, float],
        words: dict[str, str],
    ) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        seen = Observation(fault, step, names[:_MOST_NAMED], numbers, words)
        self._session.observe(seen)


class _Calls:
    """Counts calls that a step makes.

    Attributes:
        modes: Layers that work otherwise in training, and whether a call said so.
        n_read: How often the losses of layers were read.
        n_scaled: How often the optimizer has scaled a loss.
        n_applied: How often it was given gradients.
        scales: Whether it divides gradients by a scale.
    """

    def __init__(self) -> None:
        self.modes: dict[Any, bool] = {}
        self.n_read = self.n_scaled = self.n_applied = 0
        self.scales = False

    def install(self, model: Any, patches: Patches) -> None:
        """Begin to count."""
        for layer in model._flatten_layers():
            for name in _READING_LOSSES:
                if hasattr(layer, name):
                    patches.wrap(layer, name, self._counting("n_read"))
        for layer in layers_of(model):
            if _has_mode(layer):
                patches.wrap(layer, "call", functools.partial(self._noting, layer))
        optimizers = {
            id(each): each
            for each in (getattr(model, "optimizer", None), *vars(model).values())
            if hasattr(each, "scale_loss") and hasattr(each, "apply")
        }
        for optimizer in optimizers.values():
            patches.wrap(optimizer, "apply", self._counting("n_applied"))
        own = getattr(model, "optimizer", None)
        if hasattr(own, "inner_optimizer") and hasattr(own, "scale_loss"):
            self.scales = True
            patches.wrap(own, "scale_loss", self._counting("n_scaled"))

    def _counting(
        self, attribute: str
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(method: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                setattr(self, attribute, getattr(self, attribute) + 1)
                return method(*args, **kwargs)

            return counted

        return make

    def _noting(self, layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            mode = kwargs.get("training", args[1] if len(args) > 1 else None)
            is_active = mode is not None and mode is not False
            self.modes[layer] = self.modes.get(layer, False) or is_active
            return call(*args, **kwargs)

        return noted


def _has_mode(layer: Any) -> bool:
    """Return whether a layer of Keras works otherwise in training."""
    if not type(layer).__module__.startswith(_OWN):
        return False
    if type(layer).__name__ in NOISE:
        return bool(getattr(layer, "rate", None) or getattr(layer, "stddev", None))
    return kind_of(layer) is Kind.BATCH_NORM and bool(layer.trainable)


def _has_losses(layer: Any) -> bool:
    """Return whether a layer has added a loss, or regularizes what it trains."""
    return bool(getattr(layer, "_losses", None)) or any(
        getattr(each, "regularizer", None) is not None
        for each in getattr(layer, "_trainable_variables", ())
    )


def _is_own_step(model: Any) -> bool:
    step = getattr(type(model), "train_step", None)
    return not str(getattr(step, "__module__", _OWN)).startswith(_OWN)


def _source_of(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


# ---- the graph of TensorFlow -----------------------------------------------------


def _is_symbolic(value: Any) -> bool:
    return hasattr(value, "consumers") and getattr(value, "graph", None) is not None


def _graph_of(data: Any) -> Any:
    """Return the graph under trace; None: the step is run, or is not TensorFlow's."""
    found = list(tensors_in(data, _is_symbolic, 1))
    return found[0].graph if found else None


_SAME = frozenset({"Cast", "Identity", "StopGradient"})
_SHAPING = _SAME | {"ExpandDims", "Reshape", "Squeeze", "StridedSlice"}
# What a program makes a column with, on purpose.
_ADDING = frozenset({"ExpandDims", "Pack", "Reshape", "StridedSlice", "Transpose"})
_PAIRING = frozenset({"Mul", "SquaredDifference", "Sub"})
_DRAWING = frozenset(
    {"RandomStandardNormal", "StatelessRandomNormal", "StatelessRandomNormalV2"}
)
_OF_SOFTMAX = frozenset(
    {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
)
_OF_TAPE = "gradient_tape"
_DEPTH = 6


class _Graph:
    """Reads a graph.

    Args:
        operations: All of its operations.
        n_samples: Samples of a batch.
    """

    def __init__(self, operations: Sequence[Any], n_samples: int) -> None:
        self._forward = [each for each in operations if _OF_TAPE not in each.name]
        self._n_samples = n_samples

    def facts(self) -> Iterator[LossFact]:
        """Yield what is wrong with what a loss is computed of, each once."""
        seen: set[LossFault] = set()
        for operation in self._forward:
            fact = self._pairs(operation) or self._twice(operation)
            if fact is not None and fact.fault not in seen:
                seen.add(fact.fault)
                yield fact

    def _pairs(self, operation: Any) -> LossFact | None:
        """Return that a column of outputs meets a row of targets, or the reverse."""
        if operation.type not in _PAIRING or not operation.outputs[0].consumers():
            return None
        for column, row in (operation.inputs, tuple(operation.inputs)[::-1]):
            if not _is_column(column) or not _is_row(row):
                continue
            trained = [self._is_trained(each) for each in (column, row)]
            if trained[0] != trained[1]:
                n = self._n_samples
                outputs = (n, 1) if trained[0] else (n,)
                words = {"Mul": "a product (*)"}.get(operation.type, "a difference (-)")
                return LossFact(LossFault.BROADCAST, words, (outputs, (n, n)))
        return None

    def _twice(self, operation: Any) -> LossFact | None:
        if operation.type in _OF_SOFTMAX:
            source = _peeled(operation.inputs[0], _SHAPING)
            if source.op.type == "Softmax":
                form = self._n_samples, int(source.shape[-1] or 2)
                return LossFact(LossFault.SOFTMAX_TWICE, "The loss", (form,))
        if operation.type == "Log1p":
            terms = _peeled(operation.inputs[0], _SAME)
            if terms.op.type == "Exp":
                inner = _peeled(terms.op.inputs[0], _SAME)
                if inner.op.type in {"Select", "SelectV2"}:
                    scores = _peeled(inner.op.inputs[2], _SHAPING)
                    if scores.op.type == "Sigmoid":
                        shapes = ((self._n_samples,),)
                        return LossFact(LossFault.SIGMOID_TWICE, "The loss", shapes)
        return None

    def takes_variance(self) -> bool:
        """Return whether noise is multiplied by what a divergence has as a variance."""
        logarithms = {
            scale.op.inputs[0].name
            for each in self._forward
            if each.type == "Mul"
            for noise, factor in (each.inputs, tuple(each.inputs)[::-1])
            if _is_noise(noise) and (scale := _peeled(factor, _SAME)).op.type == "Exp"
        }
        return any(
            _is_divergence(each, logarithms)
            for each in self._forward
            if logarithms and each.type == "Sub"
        )

    def _is_trained(self, tensor: Any) -> bool:
        """Return whether a tensor is computed of variables."""
        seen: set[str] = set()
        waiting = [tensor.op]
        while waiting:
            operation = waiting.pop()
            if operation.name in seen:
                continue
            seen.add(operation.name)
            if operation.type == "ReadVariableOp":
                return True
            waiting += [each.op for each in operation.inputs]
        return False


def _peeled(tensor: Any, through: frozenset[str]) -> Any:
    while tensor.op.type in through and len(tensor.op.inputs):
        tensor = tensor.op.inputs[0]
    return tensor


def _dimensions(tensor: Any) -> list[int | None]:
    return [] if tensor.shape.rank is None else list(tensor.shape)


def _is_column(tensor: Any) -> bool:
    shape = _dimensions(tensor)
    is_column = len(shape) == 2 and shape[1] == 1 and shape[0] != 1
    return is_column and tensor.op.type not in _ADDING


def _is_row(tensor: Any) -> bool:
    """Return whether it has a number for each sample, of which there are several."""
    shape = _dimensions(tensor)
    return len(shape) == 1 and shape[0] != 1


def _is_noise(tensor: Any, depth: int = _DEPTH) -> bool:
    """Return whether a tensor is drawn from a normal distribution."""
    operation = tensor.op
    if operation.type in _DRAWING:
        return True
    if depth == 0 or operation.type not in _SAME | {"AddV2", "Mul"}:
        return False
    others = [each for each in operation.inputs if each.op.type != "Const"]
    return len(others) == 1 and _is_noise(others[0], depth - 1)


def _is_divergence(operation: Any, logarithms: set[str]) -> bool:
    """Return whether it is part of log v - v, where v is the exponential of log v."""
    left, right = operation.inputs
    if right.op.type == "Exp":
        name = right.op.inputs[0].name
        return name in logarithms and any(x.name == name for x in _terms(left))
    return right.name in logarithms and any(
        x.op.type == "Exp" and x.op.inputs[0].name == right.name for x in _terms(left)
    )


def _terms(tensor: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield a tensor, and what it adds up."""
    yield tensor
    if depth and tensor.op.type in {"AddV2", "Sub"}:
        for each in tensor.op.inputs:
            yield from _terms(each, depth - 1)
