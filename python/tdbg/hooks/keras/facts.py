"""Facts of a model of Keras: ends, losses and metrics, and what evaluations draw.

Layers for training only, such as dropout, advance the state of their generator where
they are active: if that moves in an evaluation, they are active there.  So are
normalizations whose running statistics move.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.session import Session
from tdbg.config.kinds import REGRESSIONS, Kind
from tdbg.hooks.keras.backend import Backend
from tdbg.hooks.keras.first_steps import last_layer
from tdbg.hooks.keras.kinds import FUSING, activation_of, kind_of
from tdbg.hooks.keras.losses import LossFunction
from tdbg.hooks.keras.names import Paths
from tdbg.hooks.keras.program import NOISE
from tdbg.hooks.keras.variables import layers_of
from tdbg.modes import TRAIN
from tdbg.run.loss_facts import LossFact, LossFault
from tdbg.run.observations import Fault, Observation

__all__ = [
    "EvaluationWatch",
    "look_at_metrics",
    "loss_facts_of",
]

_OWN = "keras.src."
_AUGMENTING = frozenset(
    {
        "AugMix",
        "CutMix",
        "RandAugment",
        "RandomBrightness",
        "RandomContrast",
        "RandomElasticTransform",
        "RandomErasing",
        "RandomFlip",
        "RandomGaussianBlur",
        "RandomInvert",
        "RandomPerspective",
        "RandomRotation",
        "RandomShear",
        "RandomTranslation",
        "RandomZoom",
    }
)
_GENERATORS = "seed_generator", "generator"
# Evaluations that are looked at, and layers that are named.
_MOST_EVALUATIONS, _MOST_NAMED, _MOST_NORMS = 2, 8, 16
_OVER_CLASSES = frozenset({Kind.CROSS_ENTROPY, Kind.CROSS_ENTROPY_OF_PROBABILITIES})
_OF_PROBABILITIES = frozenset({Kind.BCE, Kind.CROSS_ENTROPY_OF_PROBABILITIES})
_OF_SCORES = frozenset({Kind.CROSS_ENTROPY, Kind.BCE_WITH_LOGITS})
# Functions whose results are no probabilities, or no scores of any size.
_NO_PROBABILITIES = frozenset({"relu", "relu6", "tanh", "leaky_relu", "elu", "selu"})
_BOUNDED_SCORES = frozenset({"relu", "tanh"})
# The threshold of probabilities; labels that are looked at.
_HALF, _MOST_MEASURES = 0.5, 1024
# Metrics that divide probabilities at a threshold, and that compare classes.
_THRESHOLDS = frozenset(
    {
        "BinaryAccuracy",
        "FalseNegatives",
        "FalsePositives",
        "Precision",
        "Recall",
        "TrueNegatives",
        "TruePositives",
    }
)
_ACCURACIES = frozenset(
    {"BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy"}
)


class EvaluationWatch:
    """Finds layers for training only that are active in evaluation.

    Args:
        session: Receives what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before: list[tuple[Any, Any, NDArray[Any]]] = []
        self._n_evaluations = 0

    def begins(self, model: Any, backend: Backend) -> None:
        """Read the generators of a model, as its evaluation begins."""
        self._before = []
        if self._n_evaluations < _MOST_EVALUATIONS:
            self._before = [
                (layer, state, _numbers(backend, state))
                for layer, state in _states(model)
            ]

    def ended(self, model: Any, backend: Backend, paths: Paths) -> None:
        """Compare them with what they are as it ends."""
        before, self._before = self._before, []
        if not before:
            return
        self._n_evaluations += 1
        active = [
            layer
            for layer, state, known in before
            if not np.array_equal(known, _numbers(backend, state))
        ]
        if not active:
            return
        self._n_evaluations = _MOST_EVALUATIONS
        norms = [each for each in active if kind_of(each) is Kind.BATCH_NORM]
        if norms:
            self._tell_of_norms([paths.of_layer(each) for each in norms])
        active = [each for each in active if kind_of(each) is not Kind.BATCH_NORM]
        if not active:
            return
        # Programs with a test_step of their own may augment on purpose.
        step = getattr(type(model), "test_step", None)
        is_own = not str(getattr(step, "__module__", "")).startswith(_OWN)
        augments = any(type(each).__name__ in _AUGMENTING for each in active)
        names = [paths.of_layer(each) for each in active]
        classes = dict.fromkeys(type(each).__name__ for each in active)
        self._session.observe(
            Observation(
                Fault.ACTIVE_IN_EVALUATION,
                max(0, self._session.latest_step(TRAIN)[0]),
                tuple(names[:_MOST_NAMED]),
                {
                    "layers": float(len(names)),
                    "augments": float(augments and not is_own),
                },
                {"layers": ", ".join(classes)},
            )
        )

    def _tell_of_norms(self, names: Sequence[str]) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        numbers, words = {"layers": float(len(names))}, {"how": "moved"}
        fault, named = Fault.EVALUATED_BY_BATCH, tuple(names[:_MOST_NAMED])
        self._session.observe(Observation(fault, step, named, numbers, words))


def _states(model: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each layer that draws or counts if it is active, and its variable."""
    n_norms = 0
    for layer in layers_of(model):
        kind = type(layer)
        mean = getattr(layer, "moving_mean", None)
        if kind_of(layer) is Kind.BATCH_NORM and layer.built and mean is not None:
            n_norms += 1
            if n_norms <= _MOST_NORMS:
                yield layer, mean
        if kind.__name__ not in NOISE | _AUGMENTING:
            continue
        if not kind.__module__.startswith(_OWN):
            continue
        for name in _GENERATORS:
            state = getattr(getattr(layer, name, None), "state", None)
            if state is not None:
                yield layer, state
                break


def _numbers(backend: Backend, variable: Any) -> NDArray[Any]:
    array = backend.array(variable.value)
    return np.array(variable if array is None else array)


def loss_facts_of(
    model: Any, losses: Sequence[LossFunction], of_targets: LossFact | None
) -> Sequence[LossFact]:
    """Return what is wrong with the loss, as far as layers and targets show it.

    Args:
        model: The model.
        losses: Its losses.
        of_targets: What is wrong with its targets; None: nothing is known.
    """
    facts = _facts_of_one_unit, _facts_of_outputs, _facts_of_ends
    found = [fact for look in facts for fact in look(model, losses)]
    return found if of_targets is None else [*found, of_targets]


def _facts_of_one_unit(
    model: Any, losses: Sequence[LossFunction]
) -> tuple[LossFact, ...]:
    """Return what is wrong with the loss of a model that has one output and one loss.

    Args:
        model: The model; nothing is known of one that is no graph of layers.
        losses: Its losses.
    """
    outputs: Sequence[Any] = getattr(model, "outputs", None) or ()
    if len(outputs) != 1 or len(losses) != 1:
        return ()
    output, loss = outputs[0], losses[0]
    if len(output.shape) != 2 or output.shape[-1] != 1:
        return ()
    last = getattr(getattr(output, "_keras_history", None), "operation", None)
    if type(last).__name__ == "Softmax" or activation_of(last) == "softmax":
        return (LossFact(LossFault.SOFTMAX_OF_ONE, "softmax"),)
    if loss.kind in _OVER_CLASSES:
        return (LossFact(LossFault.SOFTMAX_OF_ONE, loss.class_name),)
    return ()


def _facts_of_outputs(model: Any, losses: Sequence[LossFunction]) -> Iterator[LossFact]:
    """Yield what does not fit the last layer of a model with one output and one loss.

    Args:
        model: The model; nothing is known of one that is no graph of layers.
        losses: Its losses.
    """
    last = last_layer(model)
    if last is None or len(losses) != 1:
        return
    loss, function = losses[0], activation_of(last)
    units = model.outputs[0].shape[-1]
    if loss.kind in _OF_PROBABILITIES and _gives_scores(last):
        yield LossFact(LossFault.PROBABILITIES_ARE_SCORES, loss.class_name)
    if loss.kind is Kind.BCE and function == "softmax" and (units or 0) > 2:
        yield LossFact(LossFault.SOFTMAX_FOR_BITS, loss.class_name, ((int(units),),))
    if loss.kind is Kind.BCE_WITH_LOGITS and _gives_scores(last):
        for metric in _thresholds(model):
            yield LossFact(LossFault.METRIC_OF_SCORES, metric)


def _facts_of_ends(model: Any, losses: Sequence[LossFunction]) -> Iterator[LossFact]:
    """Yield what the activation of the last layer makes that its loss cannot use."""
    last = last_layer(model)
    if last is None or len(losses) != 1:
        return
    loss, function = losses[0], activation_of(last)
    units = model.outputs[0].shape[-1]
    if loss.kind is Kind.CROSS_ENTROPY_OF_PROBABILITIES and (units or 0) > 1:
        if function == "sigmoid":
            shape = ((int(units),),)
            yield LossFact(LossFault.BITS_FOR_CLASSES, loss.class_name, shape)
        elif function in _NO_PROBABILITIES:
            yield LossFact(LossFault.PROBABILITIES_ARE_SCORES, loss.class_name)
    if loss.kind in _OF_SCORES and function in _BOUNDED_SCORES:
        operation = f"{function} {loss.class_name}"
        yield LossFact(LossFault.SCORES_BOUNDED, operation, ((int(units or 1),),))
    if loss.kind in _OVER_CLASSES and _is_over_samples(last):
        yield LossFact(LossFault.SOFTMAX_OVER_SAMPLES, "the loss")


def _is_over_samples(layer: Any) -> bool:
    """Return whether a layer of Keras makes a softmax over the samples of a batch."""
    is_softmax = type(layer).__name__ == "Softmax"
    return is_softmax and getattr(layer, "axis", -1) in (0, (0,), [0])


def _gives_scores(layer: Any) -> bool:
    """Return whether a layer is trained and ends without an activation."""
    if kind_of(layer) not in FUSING or not layer.trainable:
        return False
    if type(layer).__name__ not in {"Dense", "Conv1D", "Conv2D", "Conv3D"}:
        return False
    function = getattr(layer, "activation", None)
    is_linear = getattr(function, "__name__", "") == "linear"
    is_free = getattr(layer, "kernel_constraint", None) is None
    return is_linear and is_free and bool(layer.trainable_weights)


def _thresholds(model: Any) -> Iterator[str]:
    """Yield metrics of two classes that divide them at one half."""
    for metric in _metrics_of(model):
        if type(metric).__name__ in _THRESHOLDS and not getattr(metric, "top_k", None):
            found = getattr(metric, "thresholds", getattr(metric, "threshold", 0.0))
            if np.array_equal(np.ravel(found), [_HALF]):
                yield str(metric.name)


def _metrics_of(model: Any) -> Iterator[Any]:
    """Yield the metrics of Keras that a model has."""
    for each in getattr(model, "metrics", ()):
        inner = getattr(each, "metrics", None)
        for metric in inner if isinstance(inner, list) else [each]:
            if type(metric).__module__.startswith(_OWN):
                yield metric


def look_at_metrics(
    session: Session, model: Any, losses: Sequence[LossFunction], labels: Any
) -> None:
    """Report metrics that do not fit what the model outputs, or its labels.

    Args:
        session: Receives what is seen.
        model: The model; nothing is known of one that is no graph of layers.
        losses: Its losses.
        labels: What ``fit`` was given to learn; None: nobody knows.
    """
    last = last_layer(model)
    if last is None or len(losses) != 1:
        return
    if kind_of(last) not in FUSING and type(last).__name__ != "Activation":
        return
    for metric in _metrics_of(model):
        how = _misfit_of(metric, last, model.outputs[0].shape, losses[0], labels)
        if how:
            words = {"how": how, "class": type(metric).__name__}
            numbers = {"units": float(model.outputs[0].shape[-1] or 1)}
            step = max(0, session.latest_step(TRAIN)[0])
            name = (str(metric.name),)
            fault = Fault.METRIC_MISFITS
            session.observe(Observation(fault, step, name, numbers, words))


def _misfit_of(
    metric: Any, last: Any, shape: Sequence[Any], loss: LossFunction, labels: Any
) -> str:
    """Return how a metric misreads outputs or labels; empty: it does not."""
    name, function = type(metric).__name__, activation_of(last)
    is_linear = function is None and _gives_scores(last)
    is_squashed, is_sparse = (
        function in _SQUASHING,
        loss.class_name.startswith("Sparse"),
    )
    several = (shape[-1] or 0) > 2
    of_shares = loss.class_name == "CategoricalCrossentropy" and several
    of_scores = loss.kind is Kind.BCE_WITH_LOGITS and is_linear
    cases = {
        "equality": name == "Accuracy" and (is_linear or is_squashed),
        "truncated": name in {"IoU", "MeanIoU"}
        and is_squashed
        and getattr(metric, "sparse_y_pred", False),
        "bits": name == "BinaryAccuracy" and of_shares,
        "one label": name == "CategoricalAccuracy" and is_sparse,
        "scores": name == "AUC"
        and of_scores
        and not getattr(metric, "_from_logits", True),
        "measures": name in _ACCURACIES
        and loss.kind in REGRESSIONS
        and _are_measures(labels),
    }
    return next((how for how, holds in cases.items() if holds), "")


_SQUASHING = frozenset({"sigmoid", "softmax"})


def _are_measures(labels: Any) -> bool:
    """Return whether most labels are no whole numbers."""
    if not hasattr(labels, "__array__") or not hasattr(labels, "shape"):
        return False
    few = np.asarray(labels[:_MOST_MEASURES])
    if few.dtype.kind != "f" or not few.size:
        return False
    return bool(np.mean(few != np.round(few)) > _HALF)
