"""Batches of a classifier as class numbers, from the inputs of its loss.

Thread safety: pure functions and immutable values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import CLASSIFICATIONS, REGRESSIONS, Kind
from tdbg.modes import ModeKeys
from tdbg.rules.columns import kind_of
from tdbg.rules.rule import finds
from tdbg.rules.window import Table

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = [
    "Batch",
    "Pair",
    "PairBatches",
    "RecentBatches",
    "batch_of",
    "pairs_of",
    "recent_batches",
]

Ints = NDArray[np.int64]

# The default of `ignore_index` of PyTorch's losses.
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Pair:
    """The table rows of a loss's labels and, if captured, of its predictions.

    Attributes:
        label: Row of the labels of one call of the loss in a step.
        prediction: Row of the predictions of this call; None: not captured.
        others: The pairs of the loss's other calls in a step.
    """

    label: int
    prediction: int | None
    others: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Labels and predictions of a batch, one entry for each sample.

    Attributes:
        labels: Class numbers.
        predicted: Class numbers; None: predictions were not captured.
        n_classes: Number of classes that this batch shows.
        scores: Of two classes, by how much the second one is preferred; None: there
            are more, or predictions are class numbers or were not captured.
    """

    labels: Ints
    predicted: Ints | None
    n_classes: int
    scores: NDArray[np.float32] | None = None

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        of_scores = 0 if self.scores is None else self.scores.nbytes
        return self.labels.nbytes * (1 if self.predicted is None else 2) + of_scores

    def confusion(self, n_classes: int) -> Ints:
        """Count samples by label and prediction; without predictions, all are right."""
        predicted = self.labels if self.predicted is None else self.predicted
        cells = self.labels * n_classes + predicted
        counts = np.bincount(cells, minlength=n_classes * n_classes)
        return counts.reshape(n_classes, n_classes).astype(np.int64)


@dataclass(frozen=True, slots=True)
class RecentBatches:
    """The last batches up to a step, as many as a verdict needs.

    Attributes:
        column: The step, as a column of the table.
        confusion: Samples by label and prediction.
        before: Confusion of as many samples halfway through the training so far, or
            as early as the table reaches; None: there were too few samples.
        has_predictions: Whether predictions were captured.
        n_batches: How many batches ``confusion`` sums up.
        is_short: Whether these are all batches so far, and still too few.
        apart: Steps between the ends of ``before`` and ``confusion``.
        mode: Mode of the batches.
        of_regression: Whether the loss is a regression loss, which some classifiers
            use; its equal labels need not form one class.
        age: Steps from the first batch of this mode to the step.
        later_batches: These batches, newest first.
        seen_since: Of each class, the steps since the oldest batch that shows it, as
            far back as the table reaches; -1: none does.
        later: Confusion of the batches after the first quarter of these steps, as far
            back as the table reaches; in evaluation without batches whose labels come
            again later.
    """

    column: int
    confusion: Ints
    before: Ints | None
    has_predictions: bool
    n_batches: int
    is_short: bool = False
    apart: int = 0
    mode: ModeKeys = ModeKeys.TRAIN
    of_regression: bool = False
    age: int = 0
    later_batches: tuple[Batch, ...] = ()
    seen_since: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    later: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))


def pairs_of(table: Table, labels: str | None, predictions: str | None) -> list[Pair]:
    """Pair the labels and predictions that are inputs of the same loss.

    Args:
        table: Holds labels and predictions.
        labels: Regular expression for names of labels; None: by their role.
        predictions: Regular expression for names of predictions; None: by role.
    """
    found = _chosen(table, "label", labels)
    given = _chosen(table, "prediction", predictions)
    by_call = {_call(table.names[i]): i for i in given}
    only = given[0] if len(given) == 1 and len(found) == 1 else None
    pairs = [Pair(i, by_call.get(_call(table.names[i]), only)) for i in found]
    losses = [_call(table.names[i])[0] for i in found]
    return [
        replace(
            pair,
            others=tuple(
                other
                for other, name in zip(pairs, losses, strict=True)
                if name == loss and other is not pair
            ),
        )
        for pair, loss in zip(pairs, losses, strict=True)
    ]


def batch_of(
    labels: NDArray[np.generic], predictions: NDArray[np.generic] | None
) -> Batch | None:
    """Convert values to class numbers; None if they do not come from a classifier.

    Labels are class numbers, or one-hot rows, or zeros and ones beside a single
    output.  Predictions are scores of classes (samples x classes), or of the
    positive class: logits above 0, or probabilities above 0.5.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and _is_one_hot(labels):
        classes = labels.shape[1]
        labels = labels.argmax(axis=1)
    elif labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer):
        classes = 0
    elif labels.ndim == 1 and _is_binary(labels):
        classes = 2
    else:
        return None
    given = labels.astype(np.int64)
    kept = given != IGNORED
    if (given[kept] < 0).any():
        return None
    predicted, scores = None, None
    if predictions is not None:
        classes, predicted = _predicted(predictions, len(given), classes)
        if predicted is None:
            return None
        predicted = predicted[kept]
        scores = _scores(predictions, len(kept))
        scores = None if scores is None else scores[kept]
    given = given[kept]
    classes = max(classes, int(given.max(initial=-1)) + 1)
    return Batch(given, predicted, classes, scores if classes == 2 else None)


def recent_batches(
    table: Table,
    pair: Pair,
    model_info_at: Callable[[int], ModelInfo | None],
    *,
    samples: int,
    per_class: int,
    max_steps: int,
    max_classes: int,
) -> Iterator[RecentBatches]:
    """Yield, for each new step with a batch, the fewest last batches that are enough.

    Enough means *samples* samples, and *per_class* for each class on average, within
    the last *max_steps* rows.  With fewer samples, all batches count (``is_short``).
    A language model yields nothing: the frequencies of its classes, the tokens, are
    those of the language.
    """
    start = int(table.steps[np.argmax(table.present[pair.label])])
    batches = PairBatches(table, pair)
    known_facts: ModelInfo | None = None
    vocabularies: frozenset[int] = frozenset()
    for column in batches.columns[batches.columns >= table.start].tolist():
        now = batches[column]
        if now is None or now.n_classes < 2:
            continue
        model_info = model_info_at(int(table.steps[column]))
        if model_info is not known_facts:
            known_facts, vocabularies = model_info, _vocabularies(model_info)
        if now.n_classes in vocabularies:
            continue
        parts, steps, is_all = batches.up_to(column, max_steps)
        requested = max(samples, per_class * now.n_classes)
        n = _enough(parts, requested)
        recent = parts[:n] if n else parts
        halfway = int(np.count_nonzero(steps > (start + steps[0]) // 2))
        first = max(n, halfway)
        before = parts[first:]
        if not _enough(before, requested) and not is_all:
            # The first half of a long training lies beyond the lookback.
            before = parts[n:][::-1]
            first = len(parts) - _enough(before, requested)
        before = before[: _enough(before, requested)]
        kind = kind_of(model_info, table.names[pair.label])
        if kind not in CLASSIFICATIONS | REGRESSIONS:
            recent, before = _without_places(recent, before)
        later = _later(parts, steps, start, table.mode)
        used = recent + before
        classes = max((part.n_classes for part in used), default=0)
        if classes <= max_classes:
            yield RecentBatches(
                column=column,
                confusion=_joined(recent, classes),
                before=_joined(before, classes) if before else None,
                has_predictions=all(part.predicted is not None for part in used),
                n_batches=len(recent),
                is_short=not n,
                apart=int(steps[0] - steps[first]) if before else 0,
                mode=table.mode,
                of_regression=kind in REGRESSIONS,
                age=int(steps[0]) - start,
                later=_joined(_within(later, classes), classes),
                later_batches=tuple(later),
                seen_since=_seen_since(parts, steps, classes),
            )


def _without_places(
    recent: list[Batch], before: list[Batch]
) -> tuple[list[Batch], list[Batch]]:
    """Leave out predictions with more columns than there are classes in the labels.

    A loss of unknown kind, such as one of metric learning, may be given places in a
    space, whose width says nothing about classes.
    """
    most = max(
        (int(part.labels.max(initial=-1)) for part in recent + before), default=0
    )
    if all(part.n_classes <= most + 1 for part in recent + before):
        return recent, before
    kept = [
        [replace(part, predicted=None, n_classes=most + 1) for part in parts]
        for parts in (recent, before)
    ]
    return kept[0], kept[1]


class PairBatches:
    """The batches of a pair, by column; each is read once."""

    def __init__(self, table: Table, pair: Pair) -> None:
        self._table = table
        self._pair = pair
        self._names = _names(table, pair)
        #: The columns with labels.
        self.columns = np.flatnonzero(table.known[pair.label])
        self._found: list[Batch | None] = [None] * len(table.steps)
        self._is_read = np.zeros(len(table.steps), dtype=bool)

    def __getitem__(self, column: int) -> Batch | None:
        if not self._is_read[column]:
            self._found[column] = self._table.derived(
                self._names,
                int(self._table.steps[column]),
                lambda: _read(self._table, self._pair, column),
            )
            self._is_read[column] = True
        return self._found[column]

    def up_to(self, column: int, n: int) -> tuple[list[Batch], Ints, bool]:
        """Return the batches of the last *n* columns up to one, newest first.

        Returns:
            The batches, their steps, and whether fewer than *n* columns are there.
        """
        end = int(np.searchsorted(self.columns, column, side="right"))
        columns = self.columns[max(0, end - n) : end][::-1]
        for unread in columns[~self._is_read[columns]].tolist():
            self[unread]
        found = [(k, part) for k in columns.tolist() if (part := self._found[k])]
        steps = self._table.steps[[k for k, _ in found]]
        return [part for _, part in found], steps, end < n


def _enough(batches: list[Batch], samples: int) -> int:
    """Return how many batches hold *samples* samples; 0: all hold too few."""
    n = 0
    for i, batch in enumerate(batches):
        n += len(batch.labels)
        if n >= samples:
            return i + 1
    return 0


def _later(
    batches: list[Batch], steps: Ints, start: int, mode: ModeKeys
) -> list[Batch]:
    """Return the batches, newest first, after the first quarter of the steps so far.

    In evaluation, leave out those whose labels are those of a newer one.
    """
    now = int(steps[0])
    n = int(np.count_nonzero(steps > start + (now - start) // 4))
    found = batches[:n]
    if mode is not ModeKeys.EVAL:
        return found
    newest = {batch.labels.tobytes(): batch for batch in reversed(found)}
    return list(newest.values())


def _seen_since(batches: list[Batch], steps: Ints, n_classes: int) -> Ints:
    """Return for how many steps each class has been there; -1: it never was."""
    found = np.full(n_classes, -1, np.int64)
    # Newest first, so the oldest one stays.
    for batch, age in zip(batches, (steps[0] - steps).tolist(), strict=True):
        found[batch.labels[batch.labels < n_classes]] = age
    return found


def _within(batches: list[Batch], n_classes: int) -> list[Batch]:
    """Leave out batches that show more classes."""
    return [batch for batch in batches if batch.n_classes <= n_classes]


def _joined(batches: list[Batch], n_classes: int) -> Ints:
    if not batches:
        return np.zeros((n_classes, n_classes), np.int64)
    labels = np.concatenate([batch.labels for batch in batches])
    predicted = np.concatenate(
        [b.labels if b.predicted is None else b.predicted for b in batches]
    )
    return Batch(labels, predicted, n_classes).confusion(n_classes)


def _names(table: Table, pair: Pair) -> tuple[object, ...]:
    """Return the names of a batch's tensors, as a key of the cache."""
    prediction = "" if pair.prediction is None else table.names[pair.prediction]
    others = (_names(table, other) for other in pair.others)
    return "batch", table.names[pair.label], prediction, *others


def _read(table: Table, pair: Pair, column: int) -> Batch | None:
    """Read the batch of a step; if each call of the loss has one class, of all calls.

    A critic of real and generated inputs sees one class per call, by design, and
    learns from both calls together.
    """
    batch = _read_one(table, pair, column)
    if batch is None or not pair.others or not _is_of_one_class(batch):
        return batch
    parts = [batch]
    for other in pair.others:
        part = _read_one(table, other, column, smoothed=True)
        if part is not None and not _is_of_one_class(part):
            return batch
        parts += [] if part is None else [part]
    predicted = [part.predicted for part in parts if part.predicted is not None]
    return Batch(
        labels=np.concatenate([part.labels for part in parts]),
        predicted=np.concatenate(predicted) if len(predicted) == len(parts) else None,
        n_classes=max(part.n_classes for part in parts),
    )


def _is_of_one_class(batch: Batch) -> bool:
    return bool((batch.labels == batch.labels[:1]).all())


def _read_one(
    table: Table, pair: Pair, column: int, *, smoothed: bool = False
) -> Batch | None:
    """Read the batch of one call.

    Args:
        table: Holds the step.
        pair: The call.
        column: The step.
        smoothed: Whether labels that are all 0.9, for example, count as ones.
    """
    step = int(table.steps[column])
    labels = table.value(table.names[pair.label], step)
    if labels is None:
        return None
    if smoothed and labels.dtype.kind == "f" and (labels == labels.flat[:1]).all():
        given = labels.astype(np.float64)
        labels = np.where((given > 0) & (given < 1), np.round(given), given)
    predictions = None
    if pair.prediction is not None:
        predictions = table.value(table.names[pair.prediction], step)
    return batch_of(labels, predictions)


def _chosen(table: Table, role: str, regex: str | None) -> list[int]:
    if regex is None:
        return [i for i, given in enumerate(table.roles) if given == role]
    return [i for i, name in enumerate(table.names) if finds(regex, name)]


def _call(name: str) -> tuple[str, str]:
    """Split ``CrossEntropyLoss_input_1@2`` into ``CrossEntropyLoss`` and ``2``."""
    loss, _, rest = name.rpartition("_input_")
    return loss, rest.partition("@")[2]


def _is_binary(values: NDArray[np.generic]) -> bool:
    return bool(np.isin(values.astype(np.float64), (0.0, 1.0)).all())


def _is_one_hot(labels: NDArray[np.generic]) -> bool:
    if labels.shape[1] < 2 or not _is_binary(labels):
        return False
    return bool((labels.astype(np.float64).sum(axis=1) == 1).all())


def _predicted(
    given: NDArray[np.generic], n: int, classes: int
) -> tuple[int, Ints | None]:
    """Return the number of classes, and the predicted class of each sample."""
    scores = given.astype(np.float64)
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if scores.ndim == 2 and len(scores) == n:
        return scores.shape[1], scores.argmax(axis=1).astype(np.int64)
    if scores.ndim != 1 or len(scores) != n:
        return classes, None
    if np.issubdtype(given.dtype, np.integer):
        return max(classes, int(scores.max(initial=-1)) + 1), scores.astype(np.int64)
    # Probabilities are neither negative nor above one.
    are_probabilities = bool(((scores >= 0) & (scores <= 1)).all())
    threshold = 0.5 if are_probabilities else 0.0
    return max(classes, 2), (scores > threshold).astype(np.int64)


def _scores(given: NDArray[np.generic], n: int) -> NDArray[np.float32] | None:
    """Return by how much the second of two classes is preferred for each sample."""
    if given.dtype.kind != "f":
        return None
    scores = given.astype(np.float32)
    if scores.shape == (n, 2):
        return scores[:, 1] - scores[:, 0]
    return scores.reshape(n) if scores.size == n else None


def _vocabularies(model_info: ModelInfo | None) -> frozenset[int]:
    """Return the number of rows of each embedding of the model."""
    if model_info is None:
        return frozenset()
    return frozenset(
        parameter.shape[0]
        for parameter in model_info.parameters.values()
        if model_info.kind_of_leaf(parameter.module) == Kind.EMBEDDING
        and parameter.shape
    )
