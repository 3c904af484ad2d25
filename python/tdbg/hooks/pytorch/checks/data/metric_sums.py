"""What a program counts in its evaluations, which metrics it calls, and its best one.

Right answers are counted as the program counts them, so it is known what its accuracy
must be.  Public functions of scikit-learn have their parameters validated, so whoever
stands in for that validation hears what they are given, however they were imported.

Thread safety: the training's thread.  Errors: those of names that are odd.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from tdbg.hooks.pytorch.checks.data.loop_answers import WHOLE, Found
from tdbg.hooks.pytorch.checks.data.program_loops import KEPT, is_never_set
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.model.variables import best_values, named_numbers, namespaces
from tdbg.run.observations import Fault

__all__ = ["REMEMBERS", "MetricSums"]

# Evaluations, how far apart their accuracies must be, how exactly numbers are equal.
_LEAST_PASSES, _APART, _EQUAL = 4, 0.02, 1e-6
_LEAST_COUNTED = 3
# What a program calls an accuracy; what the best begins with.
_ACCURACY = re.compile(
    r"^(?!.*(best|run|mean|avg|ema|cum|total|all))(.*_)?acc(s|uracy|uracies)?(_|$)",
    re.IGNORECASE,
)
_BEGINS, _FAR = frozenset({0.0, -1.0}), 1e4
# Functions that rank samples by a score, and samples of both classes, at least.
_OF_SCORES = frozenset(
    {
        "average_precision_score", "precision_recall_curve", "roc_auc_score",
        "roc_curve",
    }
)  # fmt: skip
_LEAST_RANKED, _LEAST_BATCHES = 20, 3
# Metrics that are others if labels and answers change places, the numbers of outputs
# that are kept for them, and how exactly outputs are equal.
_ONE_WAY = frozenset(
    {
        "balanced_accuracy_score", "classification_report", "confusion_matrix",
        "explained_variance_score", "fbeta_score", "mean_absolute_percentage_error",
        "multilabel_confusion_matrix", "precision_recall_fscore_support",
        "precision_score", "r2_score", "recall_score",
    }
)  # fmt: skip
_LEAST_CLASSES = 3
_MOST_KEPT, _CLOSE, _MOST_LOOKED, _MOST_INDEX = 4_000_000, 1e-5, 1_000, 1 << 31
_LIGHTNING = re.compile(r"(pytorch_)?lightning\.")
REMEMBERS = ("torchmetrics.aggregation", "torchmetrics.wrappers")
"""Modules of metrics that are meant to hold what came before."""


class _Pass(NamedTuple):
    """Counts in one evaluation.

    Attributes:
        right: Right answers.
        n: All answers.
        labels: The sum of labels.
        kept: Answers without those whose label the loss ignores.
        means: The sum of the shares of right answers in each comparison.
        parts: Comparisons.
        classes: Columns of labels that name one class in each row; 0: some do not.
    """

    right: int = 0
    n: int = 0
    labels: float = 0.0
    kept: int = 0
    means: float = 0.0
    parts: int = 0
    classes: int = 0


class MetricSums:
    """Counts in the first evaluations of a training.

    Attributes:
        ordered: A metric that gets all answers of this evaluation as they came; "":
            none does.
    """

    def __init__(self) -> None:
        self._now = _Pass()
        self._passes: list[_Pass] = []
        # A label that the loss ignores, besides those below zero.
        self._ignored = -1
        # Outputs of this evaluation, and how many of those that the program compares
        # with whole numbers are none.
        self._outputs: list[torch.Tensor] = []
        self._n_kept = self._n_equal = self._n_with_digits = 0
        self.ordered = ""
        # What programs call an accuracy, and the best, after each evaluation.
        self._called: dict[str, list[float]] = {}
        self._kept: dict[str, list[float]] = {}
        # Of this evaluation: rows that the model has answered, and calls of metrics.
        self._n_rows = self._thread = 0
        self._calls: dict[str, list[int]] = {}
        self._validate: Any = None
        # The updates of metrics with a state after each evaluation.
        self._updates: dict[int, tuple[weakref.ref[Any], list[int]]] = {}
        self._found: list[Found] = []

    def note_rows(self, output: torch.Tensor) -> None:
        """Note that the program evaluates samples, and hear what metrics are given."""
        self._n_rows += len(output) if output.dim() else 0
        self._thread = threading.get_ident()
        validation: Any = sys.modules.get("sklearn.utils._param_validation")
        if validation is None:
            return
        self._n_kept += output.numel()
        if self._n_kept <= _MOST_KEPT:
            self._outputs.append(output.detach())
        if self._validate is not None:
            return
        original = validation.validate_parameter_constraints
        if original.__code__.co_filename == __file__:
            return  # Another hook hears them.

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                name = kwargs.get("caller_name", args[-1])
                self._note_call(name, args[1] if len(args) > 1 else kwargs["params"])
            return original(*args, **kwargs)

        self._validate = (validation, original)
        validation.validate_parameter_constraints = noted

    def put_back(self) -> None:
        """Hear of metrics no longer."""
        if self._validate is not None:
            validation, original = self._validate
            validation.validate_parameter_constraints = original
            self._validate = None

    def _note_call(self, name: str, params: Mapping[str, Any]) -> None:
        """Note a call of a metric."""
        if threading.get_ident() != self._thread:
            return
        given = params.get("y_score" if name in _OF_SCORES else "y_pred")
        if given is None or "y_true" not in params:
            return
        values = np.asarray(given)
        self._compare(name, np.asarray(params["y_true"]), values)
        if name in WHOLE and values.ndim:
            self._calls.setdefault(name, []).append(len(values))
        if name not in _OF_SCORES or values.size < _LEAST_RANKED:
            return
        is_flat = values.size == len(values)
        if is_flat and np.array_equal(np.unique(values), [0, 1]):
            numbers = {"samples": float(values.size)}
            self._found.append((Fault.CLASSES_FOR_SCORES, name, numbers, {}))

    def _compare(self, name: str, labels: Any, answers: Any) -> None:
        """See whether a metric gets the model's answers, and in which place."""
        n = len(labels) if labels.ndim else 0
        is_whole = n >= _LEAST_RANKED and n == self._n_rows == answers.size
        if not is_whole or labels.size != n or self._n_kept > _MOST_KEPT:
            return
        made = [*_answers_of(torch.cat(self._outputs).cpu())]
        if any(_are_equal(answers, each) for each in made):
            self.ordered = name
        elif name in _ONE_WAY and any(_are_equal(labels, each) for each in made):
            numbers = {"samples": float(n)}
            self._found.append((Fault.ANSWERS_FOR_LABELS, name, numbers, {}))

    def learn_ignored(self, graph: Graph) -> None:
        """Learn from the graph of a loss which label it ignores."""
        for node in graph.named({"NllLoss", "NllLoss2D"}):
            index = int(node._saved_ignore_index)
            self._ignored = index if index < _MOST_INDEX else -1

    def note_equality(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Note that a program asks which outputs are equal to labels."""
        is_pair = outputs.shape == labels.shape and outputs.dim() > 0
        if is_pair and bool((labels == labels.round()).all()):
            self._n_equal += outputs.numel()
            self._n_with_digits += int((outputs != outputs.round()).sum())

    def count(self, equal: torch.Tensor, labels: torch.Tensor) -> None:
        """Count right answers."""
        right, n = int(equal.sum()), equal.numel()
        kept = n
        if not labels.is_floating_point():
            kept -= int(((labels < 0) | (labels == self._ignored)).sum())
        now, share = self._now, right / max(1, n)
        self._now = _Pass(
            now.right + right,
            now.n + n,
            now.labels + float(labels.sum()),
            now.kept + kept,
            now.means + share,
            now.parts + 1,
            _classes_of(labels) if now.classes or not now.parts else 0,
        )

    def pass_ends(self) -> list[Found]:
        """Return what is wrong with an evaluation that is over."""
        if self._now.n:
            self._passes.append(self._now)
        self._now = _Pass()
        frame = sys._getframe(1)
        found = [*self._of_calls(), *self._of_states(frame), *self._of_best(frame)]
        if self._n_equal >= _LEAST_RANKED and self._n_with_digits > self._n_equal / 2:
            numbers = {
                "samples": float(self._n_equal),
                "digits": float(self._n_with_digits),
            }
            found.append((Fault.OUTPUTS_EQUAL_LABELS, "outputs", numbers, {}))
        self._outputs.clear()
        self._n_kept = self._n_equal = self._n_with_digits = 0
        self.ordered = ""
        if self._n_counted:
            found += _lowest_of(self._passes, frame)
            found += self._of_accuracy(frame)
        return found

    def _of_calls(self) -> list[Found]:
        """Return what is wrong with the calls of metrics in this evaluation."""
        found, self._found = self._found, []
        for name, sizes in self._calls.items():
            is_by_batch = len({*sizes[:-1]}) == 1 and sizes[-1] <= sizes[0] > 1
            is_whole = is_by_batch and sum(sizes) == self._n_rows
            if len(sizes) >= _LEAST_BATCHES and is_whole:
                words = {"what": name, "way": "calls"}
                numbers = {"batches": float(len(sizes))}
                found.append((Fault.SCORE_OF_BATCHES, name, numbers, words))
        self._calls.clear()
        self._n_rows = 0
        return found

    def _of_states(self, frame: FrameType) -> Iterator[Found]:
        """Yield that a metric of torchmetrics holds all evaluations so far."""
        library = sys.modules.get("torchmetrics")
        if library is None or _is_in_lightning(frame):
            return
        metrics = {
            id(value): (name, value)
            for names in namespaces(frame)
            for name, value in names.items()
            if isinstance(value, library.Metric)
            and not type(value).__module__.startswith(REMEMBERS)
        }
        for key, (name, metric) in metrics.items():
            known, counts = self._updates.get(key, (None, []))
            if known is None or known() is not metric:
                known, counts = weakref.ref(metric), []
            n = int(metric._update_count) if metric._computed is not None else 0
            counts = [*counts, n]
            self._updates[key] = known, counts
            first = counts[0]
            if first and counts == [first, 2 * first, 3 * first]:
                numbers = {"before": 2.0 * first, "after": float(n)}
                words = {"class": type(metric).__name__, "how": "loop"}
                yield Fault.METRIC_STATE_KEPT, name, numbers, words

    @property
    def _n_counted(self) -> int:
        return len(self._passes)

    def _of_accuracy(self, frame: FrameType) -> Iterator[Found]:
        """Yield that what is called an accuracy has another count below the line."""
        now = dict(named_numbers(frame, _ACCURACY))
        for name, value in now.items():
            self._called.setdefault(name, []).append(value)
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return
        for name, values in self._called.items():
            if name in now and len(values) == self._n_counted >= _LEAST_COUNTED:
                found = _of_cells(values, self._passes)
                found = found or _of_counts(values, self._passes)
                if found is not None:
                    fault, numbers = found
                    yield fault, name, numbers, {}

    def _of_best(self, frame: FrameType) -> Iterator[Found]:
        """Yield that a number that is compared as the best one never changes."""
        now = dict(named_numbers(frame, KEPT))
        for name, value in now.items():
            self._kept.setdefault(name, []).append(value)
        for name, values in self._kept.items():
            first = values[0]
            is_begin = first in _BEGINS or abs(first) >= _FAR
            if name not in now or len(values) != _LEAST_PASSES or not is_begin:
                continue
            if {*values} == {first} and is_never_set(name, frame):
                yield Fault.BEST_NEVER_MOVES, name, {}, {"value": f"{first:g}"}


def _is_in_lightning(frame: FrameType | None) -> bool:
    """Return whether Lightning trains: it resets what it logs; others have a watch."""
    while frame is not None:
        if _LIGHTNING.match(str(frame.f_globals.get("__name__"))):
            return True
        frame = frame.f_back
    return False


def _lowest_of(passes: list[_Pass], frame: FrameType) -> Iterator[Found]:
    """Yield that the program calls the lowest accuracy the best."""
    accuracies = [each.right / each.n for each in passes]
    if len(accuracies) < _LEAST_PASSES:
        return
    low, high = min(accuracies), max(accuracies)
    if sum(each < low + _APART for each in accuracies) > 1:
        return
    for name, value in best_values(frame):
        # In percent, too.
        if any(abs(value - each * low) < _EQUAL * each for each in (1.0, 100.0)):
            numbers = {"low": low, "high": high, "passes": float(len(passes))}
            yield Fault.LOWEST_IS_BEST, name, numbers, {}
            return


def _classes_of(labels: torch.Tensor) -> int:
    """Return the columns of labels that are 1 for one class and 0 for all others."""
    if labels.dim() != 2 or labels.shape[1] < _LEAST_CLASSES:
        return 0
    is_code = bool(((labels == 0) | (labels == 1)).all())
    return labels.shape[1] if is_code and bool((labels.sum(1) == 1).all()) else 0


def _of_cells(
    values: list[float], passes: list[_Pass]
) -> tuple[Fault, dict[str, float]] | None:
    """Return that an accuracy is the share of the cells of such labels, if so."""
    classes = {each.classes for each in passes}
    shares = [each.right / each.n for each in passes]
    if len(classes) > 1 or 0 in classes:
        return None
    for scale in (1.0, 100.0):
        pairs = zip(values, shares, strict=True)
        if all(abs(value - scale * share) < _EQUAL * scale for value, share in pairs):
            return Fault.CELLS_COUNTED, {
                "classes": float(*classes),
                "share": 100.0 * shares[-1],
            }
    return None


def _of_counts(
    values: list[float], passes: list[_Pass]
) -> tuple[Fault, dict[str, float]] | None:
    """Return what is wrong with an accuracy after each evaluation; None: nothing."""
    rights, sizes = [each.right for each in passes], {each.n for each in passes}
    is_known = len({*rights}) > 1 and len(sizes) == 1 and min(rights) > 0
    if not is_known or min(values) <= 0 or not all(map(math.isfinite, values)):
        return None
    n, kept = passes[0].n, passes[0].kept
    if kept < n:
        return _of_ignored(values, passes)
    counts = [right / value for right, value in zip(rights, values, strict=True)]
    for scale in (1.0, 100.0):
        count = round(scale * counts[0])
        if all(abs(scale * each - count) < _EQUAL * count for each in counts):
            numbers = {"count": float(count), "samples": float(n)}
            is_wrong = count not in {0, 1, 100, n, n / 100, n * 100}
            return (Fault.DIVIDED_BY_OTHER_COUNT, numbers) if is_wrong else None
    # Of other samples, a mean over all so far may be meant.
    if len({each.labels for each in passes}) == 1 and _are_means(values, rights, n):
        numbers = {"last": rights[-1] / n, "said": sum(rights) / (n * len(rights))}
        return Fault.COUNTS_GO_ON, numbers | {"passes": float(len(passes))}
    return None


def _of_ignored(
    values: list[float], passes: list[_Pass]
) -> tuple[Fault, dict[str, float]] | None:
    """Return that an accuracy counts samples that the loss ignores; None: it does not.

    Right answers below the line are those of all places, as a program without a mask
    has them, by sample or by batch.
    """
    every = [each.right / each.n for each in passes]
    by_batch = [each.means / each.parts for each in passes]
    for scale in (1.0, 100.0):
        for made in (every, by_batch):
            pairs = [*zip(values, made, strict=True)]
            if all(abs(x - scale * y) < _EQUAL * scale for x, y in pairs):
                last = passes[-1]
                numbers = {"samples": float(last.n), "kept": float(last.kept)}
                return Fault.METRIC_OF_IGNORED, numbers
    return None


def _answers_of(outputs: torch.Tensor) -> Iterator[Any]:
    """Yield what a program may make of outputs, one answer for each sample."""
    if outputs.dim() == 2 and outputs.shape[1] > 1:
        yield outputs.argmax(1).numpy()
    elif outputs.numel() == len(outputs):
        flat = outputs.reshape(-1)
        yield from (flat.numpy(), (flat > 0).numpy(), (flat > 0.5).numpy())


def _are_equal(given: Any, made: Any) -> bool:
    """Return whether all numbers are equal, and more than one."""
    flat = given.reshape(-1)
    if flat.dtype.kind not in "biuf" or len({*flat[:_MOST_LOOKED].tolist()}) < 2:
        return False
    is_exact = made.dtype.kind != "f"
    return bool(
        np.array_equal(flat, made) if is_exact else np.allclose(flat, made, _CLOSE)
    )


def _are_means(values: list[float], rights: list[int], n: int) -> bool:
    """Return whether values are the means over all evaluations so far."""
    means = [sum(rights[: i + 1]) / (n * (i + 1)) for i in range(len(rights))]
    apart = [
        max(
            abs(value - scale * mean) for value, mean in zip(values, means, strict=True)
        )
        for scale in (1.0, 100.0)
    ]
    return apart[0] < _EQUAL or apart[1] < 100.0 * _EQUAL
