"""What ``fit`` is given: its data, compared with each other and with earlier calls.

The weights of classes have keys, which must be the classes that the labels have.
``validation_split`` takes the last rows, so of rows that are sorted it takes classes
that training never sees.  Data of validation may be those of training, windows between
those of training, or scaled by themselves.  A model that goes on in the next fold of a
cross-validation knows the rows that this fold holds back.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.session import Session
from tdbg.hooks.keras.backend import Backend
from tdbg.hooks.keras.callbacks import callers
from tdbg.hooks.keras.optimizers import inner_of
from tdbg.hooks.keras.pipelines import (
    SharedPart,
    is_dataset,
    is_shuffled_again,
    shared_part,
)
from tdbg.hooks.keras.rows import (
    Rows,
    classes_of,
    factor_between,
    is_same,
    label_column,
    overlap_of,
    own_scale_of,
    rows_of,
    shared_rows,
)
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation
from tdbg.stats.scaled_columns import Scales
from tdbg.stats.windows import hashes_of

__all__ = ["GivenData", "arguments_of_fit"]

_MOST_NAMED, _MOST_CLASSES = 8, 1000
# The share of rows that two sets may share, and of all rows that is nearly all.
_SHARED, _NEARLY_ALL = 0.1, 0.9
# Elements of which scales are compared.
_MOST_SCALED = 1 << 22
# The share of labels of validation that training lacks, and how unlikely it is that
# validation has one class only by chance.
_UNTRAINED, _UNLIKELY = 0.1, math.log(1e-6)
# Labels of the rarest class, and how much more the most frequent one must have; the
# power of the labels that weights are, and how exactly.
_LEAST_LABELS, _UNEVEN, _LEAST_SLOPE, _ALIKE = 8, 3.0, 0.5, 0.9
_LOSSES_OF_CLASSES = ("crossentropy", "focal")
# Of a cross-validation: rows that it trains on again, and rows that it holds back now
# and has trained on; fits that are remembered.
_AGAIN, _HELD_BACK, _MOST_FITS = 0.25, 0.5, 32
# Optimizers, one after the other, that are no chance; variables that tell whether a
# model goes on, and elements of one.
_OFTEN, _MOST_VARIABLES, _MOST_ELEMENTS = 5, 16, 1 << 16


class GivenData:
    """Looks at what each ``fit`` is given.

    Args:
        session: Receives what is seen.
        backend: Reads variables.
    """

    def __init__(self, session: Session, backend: Backend) -> None:
        self._session = session
        self._backend = backend
        self._fits: weakref.WeakKeyDictionary[Any, _Fits]
        self._fits = weakref.WeakKeyDictionary()

    def fit_begins(self, model: Any) -> None:
        """Compare what the present ``fit`` is given, and with what earlier ones were.

        Args:
            model: The model that is trained.
        """
        given = arguments_of_fit()
        fits = self._fits.get(model)
        if fits is None:
            fits = self._fits[model] = _Fits(self._session, self._backend)
        self._session.run(fits.begins, model, given)
        self._session.run(_look_at_validation, self._session, given)
        self._session.run(_look_at_columns, self._session, given)
        if _is_of_classes(model):
            self._session.run(_look_at_classes, self._session, given)


class _Fits:
    """Compares calls of ``fit`` for one model."""

    def __init__(self, session: Session, backend: Backend) -> None:
        self._session = session
        self._backend = backend
        self._rows: list[NDArray[np.int64]] = []
        self._first: list[NDArray[Any]] = []
        self._optimizer: Any = lambda: None
        self._settings: tuple[Any, ...] = ()
        self._n_renewed = 0
        self._has_told = False

    def begins(self, model: Any, given: Mapping[str, Any]) -> None:
        """Compare the present ``fit`` with those before, if the model goes on."""
        now = self._variables(model)
        if not _goes_on(self._first, now):
            self._first, self._rows, self._n_renewed = now, [], 0
        self._look_at_optimizer(model)
        data, held_back = rows_of(given.get("x")), _validation_of(given)
        others = None if held_back is None else rows_of(held_back)
        if data is None or len(self._rows) >= _MOST_FITS:
            return
        rows = hashes_of(data)
        if self._rows and others is not None and others.shape[1:] == data.shape[1:]:
            self._look_at_folds(rows, hashes_of(others.astype(data.dtype, copy=False)))
        self._rows.append(rows)

    def _look_at_folds(
        self, rows: NDArray[np.int64], others: NDArray[np.int64]
    ) -> None:
        """Report rows that are held back now, and that the model has trained on."""
        known = set(np.concatenate(self._rows).tolist())
        trained = set(rows.tolist())
        again = sum(each in known for each in trained)
        shared = sum(each in known and each not in trained for each in others.tolist())
        if again < _AGAIN * len(trained) or shared < _HELD_BACK * len(others):
            return
        if not self._has_told:
            self._has_told = True
            numbers = {
                "shared": float(shared),
                "evaluated": float(len(others)),
                "fits": float(len(self._rows) + 1),
            }
            words = {"how": "folds"}
            _observe(
                self._session, Fault.VALIDATION_SHARES, numbers, words, "validation"
            )

    def _look_at_optimizer(self, model: Any) -> None:
        """See whether an optimizer begins again what its like has begun."""
        optimizer = inner_of(getattr(model, "optimizer", None))
        if optimizer is None or self._optimizer() is optimizer:
            return
        self._optimizer = weakref.ref(optimizer)
        trained = [id(each) for each in model.trainable_variables]
        last, self._settings = self._settings, (self._settings_of(optimizer), trained)
        is_new = not optimizer.built or not self._number(optimizer.iterations)
        self._n_renewed = (
            self._n_renewed + 1 if is_new and last == self._settings else 1
        )
        if self._n_renewed == _OFTEN:
            numbers = {
                "optimizers": float(_OFTEN),
                "steps": float(max(0, self._session.latest_step(TRAIN)[0])),
            }
            words = {"optimizer": type(optimizer).__name__}
            name = str(getattr(model, "name", "model"))
            fault = Fault.OPTIMIZER_MADE_ANEW
            _observe(self._session, fault, numbers, words, name)

    def _settings_of(self, optimizer: Any) -> str:
        """Return the class and settings; ``get_config`` warns under JAX."""
        rate = optimizer._learning_rate
        of_rate = self._number(rate) if hasattr(rate, "assign") else vars(rate)
        own = {
            key: value
            for key, value in vars(optimizer).items()
            if not key.startswith("_")
            and key not in {"built", "name"}
            and isinstance(value, bool | int | float | None)
        }
        return f"{type(optimizer)} {of_rate} {own}"

    def _number(self, variable: Any) -> float:
        return float(np.asarray(self._backend.array(variable.value)))

    def _variables(self, model: Any) -> list[NDArray[Any]]:
        small = [
            each
            for each in model.trainable_variables
            if math.prod(each.shape) <= _MOST_ELEMENTS
        ]
        arrays = (self._backend.array(each.value) for each in small[:_MOST_VARIABLES])
        return [np.array(each) for each in arrays if each is not None]


def _goes_on(first: Sequence[NDArray[Any]], now: Sequence[NDArray[Any]]) -> bool:
    """Return whether a model trains on, and was not set back to how it began.

    What begins as zeros or ones, such as biases, is so again if it was drawn anew.
    """
    if not first or [x.shape for x in first] != [x.shape for x in now]:
        return False
    pairs = list(zip(first, now, strict=True))
    constant = [(one, other) for one, other in pairs if (one == one.flat[0]).all()]
    return not all(np.array_equal(*each) for each in constant or pairs)


def arguments_of_fit() -> Mapping[str, Any]:
    """Return the arguments of the ``fit`` that calls this, as it has prepared them."""
    for names, module, function in callers():
        if function == "fit" and "class_weight" in names and module.startswith(_OWN):
            return dict(names)
    return {}


_OWN = "keras.src."


def _validation_of(given: Mapping[str, Any]) -> Any:
    """Return the inputs of validation; None: there are none."""
    held_back: Any = given.get("validation_data")
    is_tuple = isinstance(held_back, tuple | list) and len(held_back) > 0
    return held_back[0] if is_tuple else held_back


def _look_at_validation(session: Session, given: Mapping[str, Any]) -> None:
    """Report data of validation that are those of training, or share rows with them."""
    data, others = given.get("x"), _validation_of(given)
    if data is None or others is None:
        return
    rows, found = rows_of(data), rows_of(others)
    if others is data or (rows is not None and is_same(rows, found)):
        _observe(session, Fault.VALIDATION_IS_TRAINING, {}, {}, "validation")
    elif rows is not None and found is not None:
        shared, n_trained = shared_rows(rows, found)
        # Whoever evaluates all data does so on purpose.
        if shared >= _SHARED * len(found) and n_trained < _NEARLY_ALL * len(rows):
            numbers = {"shared": float(shared), "evaluated": float(len(found))}
            _observe(session, Fault.VALIDATION_SHARES, numbers, {}, "validation")
        elif not shared:
            _look_at_others(session, np.asarray(data), np.asarray(others))
    elif is_shuffled_again(data, others):
        words = {"how": "shuffle"}
        _observe(session, Fault.VALIDATION_SHARES, {}, words, "validation")
    elif is_dataset(data) and is_dataset(others):
        _look_at_parts(session, shared_part(data, others))


def _look_at_parts(session: Session, part: SharedPart | None) -> None:
    """Report rows of one dataset that are trained on and evaluated."""
    if part is None or part.n_shared < _SHARED * part.n_evaluated:
        return
    if part.n_shared == part.n_evaluated == part.n_trained:
        _observe(session, Fault.VALIDATION_IS_TRAINING, {}, {}, "validation")
    elif part.n_shared < _NEARLY_ALL * part.n_trained:
        numbers = {
            "shared": float(part.n_shared),
            "evaluated": float(part.n_evaluated),
        }
        words = {"how": "parts"}
        _observe(session, Fault.VALIDATION_SHARES, numbers, words, "validation")


def _look_at_others(session: Session, data: Rows, others: Rows) -> None:
    """Report validation data that are scaled otherwise, or windows among others."""
    if data.dtype.kind == "f" and others.dtype.kind == "f" and data.ndim in {2, 3}:
        overlap = overlap_of(data, others.astype(data.dtype, copy=False))
        if overlap is not None:
            numbers = {key: float(each) for key, each in overlap._asdict().items()}
            _observe(session, Fault.WINDOWS_OVERLAP, numbers, {}, "inputs")
    one, other = _columns(data), _columns(others)
    how = own_scale_of(one, other)
    if how:
        numbers = {"rows": float(len(data)), "evaluated": float(len(others))}
        _observe(session, Fault.SCALED_BY_ITSELF, numbers, {"how": how}, "inputs")
    elif (factor := factor_between(one, other)) is not None:
        _observe(session, Fault.INPUTS_SCALED, {"factor": factor}, {}, "inputs")
    elif data.dtype.kind == "f" and others.dtype.kind == "f":
        _look_at_scaler(session, one, other)


def _look_at_scaler(session: Session, one: Rows, other: Rows) -> None:
    """Report a scaler that was fitted on training and validation together."""
    found = Scales(one, np.arange(len(one))).compare(other, np.arange(len(other)))
    if found is not None and not found.is_anew:
        words = {"how": found.how}
        _observe(session, Fault.SCALED_TOGETHER, found.numbers, words, "inputs")


def _columns(data: Rows) -> Rows:
    """Return columns, some of them if there are many."""
    rows = data.reshape(len(data), -1)
    return rows[:, :: max(1, -(-rows.size // _MOST_SCALED))]


def _look_at_columns(session: Session, given: Mapping[str, Any]) -> None:
    """Report a column of a table that is the label."""
    data: Any = given.get("x")
    labels, rows = given.get("y"), rows_of(data)
    if rows is None or labels is None or np.ndim(data) != 2:
        return
    labels = np.asarray(labels) if hasattr(labels, "__array__") else np.empty(0, "O")
    if labels.dtype.kind not in "biuf" or rows.size > _MOST_SCALED:
        return
    found = label_column(rows, labels)
    if found is not None:
        column, is_equal = found
        numbers = {"column": float(column), "samples": float(len(rows))}
        words = {"place": f"[:, {column}]", "how": "equal" if is_equal else "scaled"}
        _observe(session, Fault.LABEL_AMONG_INPUTS, numbers, words, "fit")


def _look_at_classes(session: Session, given: Mapping[str, Any]) -> None:
    labels = classes_of(given.get("y"))
    if labels is None:
        return
    weights = given.get("class_weight")
    if isinstance(weights, Mapping) and weights:
        _look_at_weights(session, labels, weights)
    held_back = given.get("validation_data")
    if given.get("validation_split") and isinstance(held_back, tuple):
        others = classes_of(held_back[1]) if len(held_back) > 1 else None
        if others is not None:
            _look_at_split(session, labels, others)


def _is_of_classes(model: Any) -> bool:
    """Return whether the only loss of a model compares classes, by its name."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, Mapping | list | tuple) or loss is None:
        return False
    name = loss if isinstance(loss, str) else getattr(loss, "name", type(loss).__name__)
    name = str(name or "").replace("_", "").lower()
    return any(each in name for each in _LOSSES_OF_CLASSES)


def _look_at_weights(
    session: Session, labels: Rows, weights: Mapping[Any, Any]
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


def _look_at_split(session: Session, labels: Rows, others: Rows) -> None:
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
