"""NotNormalizedData: inputs and targets that were not normalized."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import NORMS, REGRESSIONS, Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.builtin.loss.loss_series import FIRST
from tdbg.rules.builtin.loss.moving_goals import has_moved_to
from tdbg.rules.builtin.weights.first_step import WEIGHTED
from tdbg.rules.columns import kind_of
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number, check_regex, finds
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Evidence, Severity
from tdbg.run.model_info import owner_of

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["NotNormalizedData"]


# Losses of no kind whose targets are numbers on a scale of their own, by name.
REGRESSION = re.compile(r"mse|l1|huber", re.IGNORECASE)
NORMALIZING = NORMS - {Kind.NORM}
# Modules that leave numbers as they are.
PASSING = frozenset({Kind.FLATTEN, Kind.IDENTITY})
# How many columns a message names.
SHOWN = 3
# A column whose range is this many times less than the widest one's is drowned by it:
# descent moves along it as much more slowly, times two (LeCun et al. 1998, 4.3).
DROWNED = 100.0
# Some dozens of numbers have a range of about four deviations (Tippett 1925).
DEVIATIONS = 4.0
MIN_SAMPLES = 8
# Layers with weights, to which the scale of what they are given matters.
SCALED = WEIGHTED | {Kind.RNN, Kind.GRU, Kind.LSTM}
# A layer whose input is of another size than the model's, by this factor, is given
# something else.
OTHER_SIZE = 2.0
# Numbers whose deviation is less than this share of their mean are one number.
ALIKE = 1e-6


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NotNormalizedData(Rule):
    """Report inputs and targets that are far from mean 0 and deviation 1.

    Or tables of which most columns hardly vary beside the widest one.  Only
    floating-point numbers are judged, no inputs of a model that begins with a
    normalization, none that no layer is given as it is (the model normalizes it, or
    passes it on), none that another model has made, no input of one whole number a
    sample, as a time or a length, none of ones only, as nodes of a graph have that
    have no features, and none of zeros beside another one, as a first state is.  Where
    most numbers are zero, as in one-hot codes, the others say whether they are tiny.
    Rows are merged until there are ``min_elements`` of them.

    Args:
        max_mean: The mean may be this far from 0.
        max_std: The standard deviation may be this large.
        min_std: It must be at least this large.
        target_scale: Targets of regressions may have so many times the limits of
            inputs.
        min_elements: Numbers to judge by, at least.
        min_targets: The same of targets, of which a batch has few.
        num_steps: Recorded steps to merge, at most.
        tensor_regex: Judge tensors of such names; None: inputs of the model, and what
            a regression's loss is given as target.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    max_mean: float = 3.0
    max_std: float = 5.0
    min_std: float = 0.02
    target_scale: float = 10.0
    min_elements: int = 500
    min_targets: int = 100
    num_steps: int = 20
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "max_mean", above=0.0)
        check_number(self, "max_std", above=0.0)
        check_number(self, "min_std", least=0.0, most=self.max_std)
        check_number(self, "target_scale", above=0.0)
        check_number(self, "min_elements", least=2, whole=True)
        check_number(self, "min_targets", least=2, whole=True)
        check_number(self, "num_steps", least=1, whole=True)
        check_regex(self, "tensor_regex")

    @property
    def first_verdict(self) -> str:
        """What its first verdict needs."""
        return f"{self.min_elements} numbers that the model was given"

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of inputs and targets; one batch of values, to name columns."""
        inputs = frozenset({"model_inputs"})
        return (
            *with_beginning(Needs(collections=inputs | {"labels"})),
            Needs(collections=inputs, statistics=False, raw=True, first_steps=1),
            Needs(collections=frozenset({"inputs"}), first_steps=1),
        )

    @property
    def lookback(self) -> int:
        """The steps that one verdict merges."""
        return self.num_steps - 1

    @property
    def head_rows(self) -> int:
        """The first batch, which may have values, and the first targets."""
        return FIRST

    def selects(self, tensor: TensorInfo) -> bool:
        """Select inputs and targets; model info says which are of regressions."""
        if self.tensor_regex is not None:
            return finds(self.tensor_regex, tensor.name)
        return tensor.role in {"label", "model_input", "input"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the steps of training."""
        for table in window.tables(*TRAINING):
            model_info = window.model_info_at(int(table.steps[-1]))
            for i in range(len(table.names)):
                if "float" in table.dtypes[i] and self._is_judged(model_info, table, i):
                    normalized = table.roles[i] != "label" and (
                        _begins_normalized(model_info)
                        or _are_counts(table, i)
                        or _is_changed(table, i, model_info)
                    )
                    yield self._judge(table, i, normalized=normalized)

    def _is_judged(self, model_info: ModelInfo | None, table: Table, i: int) -> bool:
        """Whether a tensor is data that a model is given, or a regression's target."""
        if self.tensor_regex is not None:
            return True
        if table.roles[i] == "input":
            return False
        if table.roles[i] == "model_input":
            return model_info is None or table.names[i] not in model_info.made_inputs
        kind = kind_of(model_info, table.names[i])
        return kind in REGRESSIONS if kind else bool(REGRESSION.search(table.names[i]))

    def _judge(self, table: Table, i: int, *, normalized: bool) -> Evaluation:
        scale = self.target_scale if table.roles[i] == "label" else 1.0
        new = np.arange(table.start, len(table.steps))
        mean, std, size = self._merged(table, i, new)
        with np.errstate(invalid="ignore"):
            far = np.abs(mean) > self.max_mean * scale
            far |= (std > self.max_std * scale) | (size < self.min_std / scale)
        if table.roles[i] == "label":
            # Targets that are all alike are the word of an adversary: real, or false.
            far &= (std > ALIKE * np.abs(mean)) | (np.abs(mean) > self.max_mean * scale)
        else:
            # Ones stand for no features, or for a mask that hides nothing; zeros
            # beside other inputs, for a state before there is one.
            plain = {1.0} if i == table.roles.index(table.roles[i]) else {0.0, 1.0}
            far &= ~np.isin(mean, list(plain)) | (std > 0)
        drowned, of = self._drowned(table, i)
        bad = far | (2 * drowned > of)
        if table.roles[i] == "label":
            for j in np.flatnonzero(bad).tolist():
                bad[j] = not has_moved_to(table, i, float(mean[j]), int(new[j]))
        severities = np.where(bad & ~normalized, int(Severity.WARNING), OK)
        severities[np.isnan(mean)] = UNKNOWN

        def describe(j: int) -> Description:
            if not far[j]:
                return self._describe_drowned(table, i, drowned, of)
            return self._describe(table, i, float(mean[j]), float(std[j]), scale)

        return table.judge_one(table.names[i], severities, describe)

    def _merged(
        self, table: Table, i: int, columns: NDArray[np.intp]
    ) -> tuple[Floats, Floats, Floats]:
        """Mean, deviation and size up to each column; NaN where there are few values.

        The size is the deviation; or, if most values are zero, the root mean square of
        those that are not.
        """
        known = table.known[i]
        # ExplodingTensor reports NaN and Inf; this rule judges finite values.
        is_target = table.roles[i] == "label"
        least = self.min_targets if is_target else self.min_elements
        n = np.where(known, table["count"][i] - table.not_finite[i], 0.0)
        mean = np.where(n > 0, table["mean"][i], 0.0)
        m2 = np.where(n > 0, table["m2"][i], 0.0)
        means = np.full(len(columns), np.nan)
        deviations = np.full(len(columns), np.nan)
        sizes = np.full(len(columns), np.nan)
        judged = np.flatnonzero(n[columns] > 0)
        if not len(judged):
            return means, deviations, sizes
        rows = np.flatnonzero(known)
        at = np.searchsorted(rows, columns[judged])
        # Columns x rows up to each, the last one first.
        back = at[:, np.newaxis] - np.arange(self.num_steps)
        last = rows[np.maximum(back, 0)]
        counts = np.where(back >= 0, n[last], 0.0)
        up_to = np.cumsum(counts, axis=1)
        used = (back >= 0) & (up_to - counts < least)
        counts *= used
        total = np.where(up_to[:, -1] >= least, counts.sum(axis=1), np.nan)
        middle = (counts * mean[last]).sum(axis=1) / total
        spread = m2[last] * used + counts * (mean[last] - middle[:, np.newaxis]) ** 2
        means[judged] = middle
        deviations[judged] = np.sqrt(spread.sum(axis=1) / total)
        n_zero = (table["zero"][i][last] * used).sum(axis=1)
        squares = spread.sum(axis=1) + total * middle**2
        is_sparse = (2 * n_zero > total) & (n_zero < total)
        of_others = np.sqrt(squares / np.where(is_sparse, total - n_zero, 1.0))
        sizes[judged] = np.where(is_sparse, of_others, deviations[judged])
        return means, deviations, sizes

    def _describe(
        self, table: Table, i: int, mean: float, std: float, scale: float
    ) -> Description:
        kind = "target" if table.roles[i] == "label" else "input"
        is_far = abs(mean) > self.max_mean * scale
        if is_far:
            value, limit, said = mean, self.max_mean * scale, "the mean is far from 0"
        elif std > self.max_std * scale:
            value, limit, said = std, self.max_std * scale, "the deviation is large"
        else:
            value, limit, said = std, self.min_std / scale, "the deviation is tiny"
        return Description(
            message=(
                f"mean {mean:.4g}, standard deviation {std:.4g}: {said}"
                f"{self._columns(table, i)}"
            ),
            value=value,
            threshold=limit,
            evidence=Evidence("mean", math.copysign(limit, mean))
            if is_far
            else Evidence("std", limit),
            advice=(
                f"subtract the mean of the training set from each {kind} and divide by "
                "its standard deviation (torchvision.transforms.Normalize, "
                "sklearn.preprocessing.StandardScaler), in validation with the same "
                "numbers" + ("; turn predictions back" if kind == "target" else "")
            ),
        )

    def _drowned(self, table: Table, i: int) -> tuple[int, int]:
        """How many columns of tabular data hardly vary beside others, and of how many.

        Constant columns do not count: there is nothing to learn from them.
        """
        x = _first_table(table, i)
        if x is None or len(x) < MIN_SAMPLES or table.roles[i] == "label":
            return 0, 0
        ranges = np.ptp(x, axis=0)
        ranges = ranges[ranges > 0]
        widest = float(ranges.max(initial=0.0))
        narrow = (ranges < DEVIATIONS * self.min_std) & (DROWNED * ranges < widest)
        return int(np.count_nonzero(narrow)), len(ranges)

    def _describe_drowned(
        self, table: Table, i: int, drowned: int, of: int
    ) -> Description:
        return Description(
            message=(
                f"{drowned} of {of} columns vary by less than 1 % of what the widest "
                f"one does{self._columns(table, i)}"
            ),
            value=100.0 * drowned / of,
            threshold=50.0,
            advice=(
                "subtract from each column its own mean and divide by its own "
                "deviation (axis=0; sklearn.preprocessing.StandardScaler), not by "
                "those of the whole table"
            ),
        )

    def _columns(self, table: Table, i: int) -> str:
        """Name the worst columns of tabular data, if a batch of values was saved."""
        x = _first_table(table, i)
        if x is None:
            return ""
        scale = np.hypot(x.mean(axis=0), x.std(axis=0))
        worst = np.argsort(-scale)[:SHOWN].tolist()
        text = ", ".join(
            f"{k} (mean {x[:, k].mean():.3g}, std {x[:, k].std():.3g})" for k in worst
        )
        return f"; of {x.shape[1]} columns the largest are {text}"


def _first_table(table: Table, i: int) -> Floats | None:
    """The first batch, samples x columns, if it is tabular and was saved.

    Only the first batch: which others the table holds depends on the window.
    """
    first = table.known[i] & (table.ordinal[i] == 1)
    for step in table.steps[first].tolist():
        values = table.value(table.names[i], step)
        if values is not None and values.ndim == 2 and min(values.shape) > 1:
            return values.astype(np.float64)
    return None


def _are_counts(table: Table, i: int) -> bool:
    """Whether an input is of integers, or of one whole number for each sample.

    Tokens, times and indices are.  The type of an input may be another one in
    evaluation, where other arguments come in its place; the first values decide.
    """
    for step in table.steps[table.ordinal[i] == 1].tolist():
        values = table.value(table.names[i], step)
        if values is not None:
            is_whole = values.dtype.kind in "iub"
            return is_whole or (
                values.ndim == 1 and bool((values == np.rint(values)).all())
            )
    return False


def _is_changed(table: Table, i: int, model_info: ModelInfo | None) -> bool:
    """Whether no layer was given an input of the model as it is, at the first step.

    The model normalizes it by operations of its own, or gives it to a loss.
    """
    first = np.flatnonzero(table.known[i] & (table.ordinal[i] == 1))
    if model_info is None or not len(first):
        return False
    layers = [
        k
        for k, (name, role) in enumerate(zip(table.names, table.roles, strict=True))
        if role == "input"
        and "float" in table.dtypes[k]
        and table.known[k, first[0]]
        and model_info.kind_of(name) in SCALED
    ]
    column = {name: table[name][:, first[0]] for name in ("count", "l2", "min", "max")}
    sizes = column["l2"] / np.sqrt(np.maximum(column["count"], 1.0))
    given = sizes[layers]
    is_like = (given * OTHER_SIZE >= sizes[i]) & (given <= OTHER_SIZE * sizes[i])
    # Beside something else (torch.cat) it has its extremes.
    for name in ("min", "max"):
        extremes = column[name]
        is_like |= (extremes[layers] == extremes[i]) & (extremes[i] != 0)
    return len(layers) > 0 and not is_like.any()


def _begins_normalized(model_info: ModelInfo | None) -> bool:
    """Whether the first module that changes its input normalizes it."""
    if model_info is None:
        return False
    parents = set(map(owner_of, model_info.modules))
    kinds = (
        model_info.kind_of_leaf(module)
        for path, module in model_info.modules.items()
        if path not in parents and path not in model_info.models
    )
    return next((kind for kind in kinds if kind not in PASSING), None) in NORMALIZING
