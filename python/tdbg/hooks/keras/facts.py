"""Facts of a model of Keras and its ``fit``: ends, labels, and what evaluations draw.

The weights of classes have keys, which must be the classes that the labels have.
``validation_split`` takes the last rows, so of rows that are sorted it takes classes
that training never sees.  Data of validation may be those of training.  And layers for
training only, such as dropout, advance the state of their generator where they are
active: if that moves in an evaluation, they are active there.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.session import Session
from tdbg.config.kinds import Kind
from tdbg.hooks.keras.backend import Backend
from tdbg.hooks.keras.first_steps import last_layer
from tdbg.hooks.keras.kinds import FUSING, activation_of, kind_of
from tdbg.hooks.keras.losses import LossFunction
from tdbg.hooks.keras.names import Paths
from tdbg.hooks.keras.variables import layers_of
from tdbg.modes import TRAIN
from tdbg.run.loss_facts import LossFact, LossFault
from tdbg.run.observations import Fault, Observation

__all__ = [
    "EvaluationWatch",
    "look_at_data",
    "loss_facts_of",
]

_MOST_FRAMES = 12
_OWN = "keras.src."
# Layers that draw when they are active, and only then.
_NOISE = frozenset(
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
_MOST_EVALUATIONS, _MOST_NAMED = 2, 8
# Labels that are read; classes are as many as this at most.
_MOST_LABELS, _MOST_CLASSES = 1 << 22, 1000
# Elements of data that are compared, different ones that make a row no code, and the
# share of rows of which this must hold; the share of rows that two sets may share.
_MOST_COMPARED, _OF_NUMBERS, _NEARLY_ALL, _SHARED = 1 << 24, 6, 0.9, 0.1
# The share of labels of validation that training lacks, and how unlikely it is that
# validation has one class only by chance.
_UNTRAINED, _UNLIKELY = 0.1, math.log(1e-6)
# Labels of the rarest class, and how much more the most frequent one must have; the
# power of the labels that weights are, and how exactly.
_LEAST_LABELS, _UNEVEN, _LEAST_SLOPE, _ALIKE = 8, 3.0, 0.5, 0.9
_OVER_CLASSES = frozenset({Kind.CROSS_ENTROPY, Kind.CROSS_ENTROPY_OF_PROBABILITIES})
_OF_PROBABILITIES = frozenset({Kind.BCE, Kind.CROSS_ENTROPY_OF_PROBABILITIES})
# The threshold of probabilities.
_HALF = 0.5
_LOSSES_OF_CLASSES = ("crossentropy", "focal")

Labels = NDArray[np.generic]


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


def _states(model: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each layer that draws if it is active, and its generator's variable."""
    for layer in layers_of(model):
        kind = type(layer)
        if kind.__name__ not in _NOISE | _AUGMENTING:
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


def look_at_data(session: Session, model: Any) -> None:
    """Compare what the present ``fit`` is given to train with its other arguments.

    Args:
        session: Receives what is seen.
        model: The model that is trained.
    """
    given = _arguments_of_fit()
    _look_at_validation(session, given)
    if not _is_of_classes(model):
        return
    labels = _classes_of(given.get("y"))
    if labels is None:
        return
    weights = given.get("class_weight")
    if isinstance(weights, Mapping) and weights:
        _look_at_weights(session, labels, weights)
    held_back = given.get("validation_data")
    if given.get("validation_split") and isinstance(held_back, tuple):
        others = _classes_of(held_back[1]) if len(held_back) > 1 else None
        if others is not None:
            _look_at_split(session, labels, others)


def _arguments_of_fit() -> Mapping[str, Any]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        is_fit = frame.f_code.co_name == "fit" and "class_weight" in frame.f_locals
        if is_fit and str(frame.f_globals.get("__name__")).startswith(_OWN):
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def _look_at_validation(session: Session, given: Mapping[str, Any]) -> None:
    """Report data of validation that are those of training, or share rows with them."""
    data, held_back = given.get("x"), given.get("validation_data")
    if data is None or held_back is None:
        return
    is_tuple = isinstance(held_back, tuple | list) and len(held_back) > 0
    others = held_back[0] if is_tuple else held_back
    rows, found = _rows_of(data), _rows_of(others)
    if others is data or (rows is not None and _is_same(rows, found)):
        _observe(session, Fault.VALIDATION_IS_TRAINING, {}, {}, "validation")
    elif rows is not None and found is not None:
        shared, n_trained = _shared_rows(rows, found)
        # Whoever evaluates all data does so on purpose.
        if shared >= _SHARED * len(found) and n_trained < _NEARLY_ALL * len(rows):
            numbers = {"shared": float(shared), "evaluated": float(len(found))}
            _observe(session, Fault.VALIDATION_SHARES, numbers, {}, "validation")
    elif _is_shuffled_again(data, others):
        words = {"how": "shuffle"}
        _observe(session, Fault.VALIDATION_SHARES, {}, words, "validation")


def _rows_of(given: Any) -> NDArray[Any] | None:
    """Return samples of numbers, a row each; None: they are something else, or many."""
    if not hasattr(given, "__array__") or not hasattr(given, "shape"):
        return None
    shape = tuple(given.shape)
    if len(shape) < 2 or not 0 < math.prod(shape) <= _MOST_COMPARED:
        return None
    array = np.asarray(given)
    return array.reshape(len(array), -1) if array.dtype.kind in "biuf" else None


def _is_same(one: NDArray[Any], other: NDArray[Any] | None) -> bool:
    return other is not None and one.shape == other.shape and bool((one == other).all())


def _shared_rows(one: NDArray[Any], other: NDArray[Any]) -> tuple[int, int]:
    """Return how many rows of the other are among the one, and the reverse.

    Codes repeat by nature: most rows must have different elements.
    """
    if one.dtype != other.dtype or one.shape[1] != other.shape[1]:
        return 0, 0
    some = other[:: max(1, len(other) // 64)]
    if np.mean([len(set(each.tolist())) >= _OF_NUMBERS for each in some]) < _NEARLY_ALL:
        return 0, 0
    known, asked = ([each.tobytes() for each in rows] for rows in (one, other))
    trained, evaluated = set(known), set(asked)
    return sum(each in trained for each in asked), sum(
        each in evaluated for each in known
    )


_PARTS = {"_TakeDataset": "_SkipDataset", "_SkipDataset": "_TakeDataset"}


def _is_shuffled_again(one: Any, other: Any) -> bool:
    """Return whether both are parts of a dataset of TensorFlow that shuffles each time.

    Then each pass draws the parts anew.
    """
    found = _shuffles_below(one)
    return any(
        _PARTS.get(found.get(shuffle, "")) == part
        for shuffle, part in _shuffles_below(other).items()
    )


def _shuffles_below(dataset: Any) -> dict[int, str]:
    """Return shuffles that begin anew each time, and how the dataset takes its part."""
    found: dict[int, str] = {}
    part = ""
    for _ in range(_MOST_NAMED * 4):
        name = type(dataset).__name__
        if name == "CacheDataset" or dataset is None:
            break
        part = name if name in _PARTS else part
        again = getattr(dataset, "_reshuffle_each_iteration", None)
        if name == "_ShuffleDataset" and again is not False and part:
            found[id(dataset)] = part
        dataset = getattr(dataset, "_input_dataset", None)
    return found


def _is_of_classes(model: Any) -> bool:
    """Return whether the only loss of a model compares classes, by its name."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, Mapping | list | tuple) or loss is None:
        return False
    name = loss if isinstance(loss, str) else getattr(loss, "name", type(loss).__name__)
    name = str(name or "").replace("_", "").lower()
    return any(each in name for each in _LOSSES_OF_CLASSES)


def _classes_of(given: Any) -> Labels | None:
    """Return labels as classes; None: they are none, or nobody knows."""
    if not hasattr(given, "__array__") or not hasattr(given, "shape"):
        return None
    if math.prod(given.shape) > _MOST_LABELS:
        return None
    labels = np.asarray(given)
    if labels.dtype.kind not in "biuf" or not labels.size:
        return None
    if labels.ndim == 2 and labels.shape[1] > 1:
        if not np.isin(labels, (0, 1)).all() or (labels.sum(1) != 1).any():
            return None
        return np.asarray(labels.argmax(1))
    if labels.ndim > 2 or (labels.ndim == 2 and labels.shape[1] != 1):
        return None
    labels = labels.ravel()
    is_whole = np.isfinite(labels).all() and (labels == np.floor(labels)).all()
    return labels.astype(np.int64) if is_whole else None


def _look_at_weights(
    session: Session, labels: Labels, weights: Mapping[Any, Any]
) -> None:
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) > _MOST_CLASSES:
        return
    unknown = [key for key in weights if not any(key == each for each in classes)]
    missing = [int(each) for each in classes if each not in weights]
    if unknown and missing:
        numbers = {"keys": float(len(unknown)), "classes": float(len(missing))}
        words = {
            "keys": ", ".join(map(repr, unknown[:_MOST_NAMED])),
            "classes": ", ".join(map(str, missing[:_MOST_NAMED])),
        }
        _observe(session, Fault.WEIGHTS_NAME_NO_CLASS, numbers, words)
    elif not missing:
        each = np.array([float(weights[value]) for value in classes.tolist()])
        if _follow(each, counts):
            often, rare = int(counts.argmax()), int(counts.argmin())
            numbers = {
                "often": float(classes[often]),
                "rare": float(classes[rare]),
                "labels": float(counts.sum()),
                "often_labels": float(counts[often]),
                "rare_labels": float(counts[rare]),
                "often_weight": float(each[often]),
                "rare_weight": float(each[rare]),
            }
            _observe(session, Fault.WEIGHTS_UPSIDE_DOWN, numbers, {})


def _follow(weights: NDArray[np.float64], counts: NDArray[np.int64]) -> bool:
    """Return whether weights grow as numbers of labels do, and nearly as much."""
    if len(weights) < 2 or weights.min() <= 0 or counts.min() < _LEAST_LABELS:
        return False
    if counts.max() < _UNEVEN * counts.min() or np.ptp(weights) == 0:
        return False
    x, y = np.log(counts), np.log(weights)
    x, y = x - x.mean(), y - y.mean()
    slope = float((x * y).sum() / (x * x).sum())
    likeness = float((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))
    return _LEAST_SLOPE <= slope <= 1 / _LEAST_SLOPE and likeness >= _ALIKE


def _look_at_split(session: Session, labels: Labels, others: Labels) -> None:
    """Report that the rows that ``validation_split`` takes have other classes."""
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) > _MOST_CLASSES or not others.size:
        return
    unknown = others[~np.isin(others, classes)]
    validated = np.unique(others)
    numbers = {"samples": float(len(others)), "untrained": float(len(unknown))}
    if len(unknown) >= _UNTRAINED * len(others):
        found = np.unique(unknown)
        numbers |= {"classes": float(len(found)), "class": float(found[0])}
        _observe(session, Fault.CLASSES_NOT_TRAINED, numbers, {"setting": _SPLIT})
    elif len(validated) == 1 and len(classes) > 1:
        share = float(counts[classes == validated[0]].sum() / counts.sum())
        if len(others) * math.log(share) < _UNLIKELY:
            numbers |= {"class": float(validated[0]), "share": share}
            _observe(session, Fault.CLASSES_NOT_TRAINED, numbers, {"setting": _SPLIT})


_SPLIT = "validation_split"


def _observe(
    session: Session,
    fault: Fault,
    numbers: dict[str, float],
    words: dict[str, str],
    name: str = "labels",
) -> None:
    step = max(0, session.latest_step(TRAIN)[0])
    session.observe(Observation(fault, step, (name,), numbers, words))


def loss_facts_of(
    model: Any, losses: Sequence[LossFunction], of_targets: LossFact | None
) -> Sequence[LossFact]:
    """Return what is wrong with the loss, as far as layers and targets show it.

    Args:
        model: The model.
        losses: Its losses.
        of_targets: What is wrong with its targets; None: nothing is known.
    """
    found = [*_facts_of_one_unit(model, losses), *_facts_of_outputs(model, losses)]
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
    for each in getattr(model, "metrics", ()):
        inner = getattr(each, "metrics", None)
        for metric in inner if isinstance(inner, list) else [each]:
            is_binary = type(metric).__name__ == "BinaryAccuracy"
            if is_binary and float(getattr(metric, "threshold", 0.0)) == _HALF:
                yield str(metric.name)
