"""NotNormalizedData: inputs and targets that are not normalized."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import NORMS, REGRESSIONS, Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import number, percent, plural
from tdbg.modes import TRAINING
from tdbg.rules.builtin.loss.loss_series import FIRST
from tdbg.rules.builtin.loss.moving_goals import has_moved_to
from tdbg.rules.builtin.weights.first_step import WEIGHTED
from tdbg.rules.builtin.weights.update_sizes import UpdateSizes
from tdbg.rules.columns import is_matrix, kind_of
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
from tdbg.run.findings import Evidence, Severity, Stage
from tdbg.run.model_info import owner_of

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["NotNormalizedData"]


# Names of losses without a kind whose targets are numbers on a scale of their own.
REGRESSION = re.compile(r"mse|l1|huber", re.IGNORECASE)
NORMALIZING = NORMS - {Kind.NORM}
# Modules that leave numbers as they are.
PASSING = frozenset({Kind.FLATTEN, Kind.IDENTITY})
# How many columns a message names.
SHOWN = 3
# A wide column drowns one whose range is this many times smaller: gradient descent
# moves along the narrow one slower by the square of that ratio (LeCun et al. 1998,
# 4.3).
DROWNED = 100.0
# The range of a few dozen numbers is about four deviations (Tippett 1925).
DEVIATIONS = 4.0
MIN_SAMPLES = 8
# The standard errors by which a deviation must be too large: where numbers have heavy
# tails, a single one can make a batch's deviation.
ERRORS = 2.0
# Layers with weights: the scale of their inputs matters.
SCALED = WEIGHTED | {Kind.RNN, Kind.GRU, Kind.LSTM}
# A layer whose input differs in size from the model's by this factor gets something
# else.
OTHER_SIZE = 2.0
# Numbers whose deviation is below this share of their mean are all the same.
ALIKE = 1e-6
# Parameters, whose first updates show whether the scale of the data does harm.
PARAMETERS = frozenset({"weight", "bias", "gradient", "update"})
# A placeholder for missing values: rows of a batch, at least, columns that have one if
# they were scaled, rows with and different numbers without it, and numbers that
# programs write for it, of nines.
TABLE, COLUMNS, LEAST, OTHERS = 24, 3, 2, 8
NINES = (99.0, 999.0, 9999.0, 99999.0)
# A first update above this share of its weight is too large; normalized data would have
# made it as many times smaller as they are, which must bring it below the other share.
TOO_LARGE, BEARABLE = 0.1, 0.3


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NotNormalizedData(Rule):
    """Report inputs and targets that are far from mean 0 and deviation 1.

    The rule also reports tables in which most columns hardly vary beside the widest
    one, or have a placeholder for missing values.  It judges floating-point numbers
    only and skips inputs

    - of a model that begins with a normalization;
    - that reach no layer unchanged, because the model normalizes or forwards them, or
      has no layer that multiplies;
    - that another model has produced;
    - with one whole number for each sample, such as a time or a length;
    - of ones only, which graph nodes without features have;
    - of zeros beside another input, such as an initial state, and what follows it.

    Where most numbers are zero, as in one-hot codes, the others decide whether the
    input is tiny.  The rule merges rows until it has ``min_elements`` numbers.

    If the scale of the data has made the first updates too large, so that what goes
    wrong follows from it, the finding is a fact of the setup.

    Args:
        max_mean: Largest distance of the mean from 0.
        max_std: Largest standard deviation.
        min_std: Least standard deviation.
        target_scale: Factor by which the limits of regression targets exceed those of
            inputs.
        min_elements: Least number of values to judge by.
        min_targets: Least number of targets to judge by; a batch has few.
        num_steps: Most recorded steps to merge.
        tensor_regex: Judge tensors with matching names; None: inputs of the model and
            targets of regression losses.

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
        """The data that a first verdict needs."""
        return f"{plural(self.min_elements, 'number')} in the inputs of the model"

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of inputs and targets; one batch of values, to name columns."""
        inputs = frozenset({"model_inputs"})
        return (
            *with_beginning(Needs(collections=inputs | {"labels"})),
            Needs(
                collections=frozenset({"weights", "biases", "gradients", "updates"}),
                first_steps=1,
            ),
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
        """Select inputs and targets; model info says which belong to regressions."""
        if tensor.role in PARAMETERS:
            return True
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
                        or _begins_with_zeros(table, i)
                        or _is_changed(table, i, model_info)
                    )
                    yield self._judge(table, i, normalized=normalized)

    def _is_judged(self, model_info: ModelInfo | None, table: Table, i: int) -> bool:
        """Return whether a tensor is an input of the model or a regression target."""
        if self.tensor_regex is not None:
            return bool(finds(self.tensor_regex, table.names[i]))
        if table.roles[i] == "input" or table.roles[i] in PARAMETERS:
            return False
        if table.roles[i] == "model_input":
            return model_info is None or table.names[i] not in model_info.made_inputs
        kind = kind_of(model_info, table.names[i])
        return kind in REGRESSIONS if kind else bool(REGRESSION.search(table.names[i]))

    def _judge(self, table: Table, i: int, *, normalized: bool) -> Evaluation:
        scale = self.target_scale if table.roles[i] == "label" else 1.0
        new = np.arange(table.start, len(table.steps))
        merged = self._merged(table, i, new)
        mean, std = merged.mean, merged.deviation
        with np.errstate(invalid="ignore"):
            far = np.abs(mean) - ERRORS * merged.error > self.max_mean * scale
            far |= merged.at_least > self.max_std * scale
            far |= merged.size < self.min_std / scale
        if table.roles[i] == "label":
            # Targets that are all equal come from an adversary: real, or fake.
            far &= (std > ALIKE * np.abs(mean)) | (np.abs(mean) > self.max_mean * scale)
        else:
            # Ones stand for missing features or for a mask that hides nothing; zeros
            # beside other inputs, for an initial state.
            plain = {1.0} if i == table.roles.index(table.roles[i]) else {0.0, 1.0}
            far &= ~np.isin(mean, list(plain)) | (std > 0)
        drowned, of = self._drowned(table, i)
        placeholder = _placeholder(table, i)
        bad = far | (2 * drowned > of) | (placeholder is not None)
        if table.roles[i] == "label":
            for j in np.flatnonzero(bad).tolist():
                bad[j] = not has_moved_to(table, i, float(mean[j]), int(new[j]))
        severities = np.where(bad & ~normalized, int(Severity.WARNING), OK)
        severities[np.isnan(mean)] = UNKNOWN

        def describe(j: int) -> Description:
            found = (
                _describe_placeholder(placeholder)
                if placeholder is not None
                else self._describe(table, i, float(mean[j]), float(std[j]), scale)
                if far[j]
                else self._describe_drowned(table, i, drowned, of)
            )
            does_harm = _makes_updates_too_large(table, int(new[j]))
            return replace(
                found,
                since=self._since(table, i, int(new[j])),
                stage=Stage.SETUP if does_harm else None,
            )

        return table.judge_one(table.names[i], severities, describe)

    def _merged(self, table: Table, i: int, columns: NDArray[np.intp]) -> _Merged:
        """Merge the rows up to each column; NaN for too few values."""
        known = table.known[i]
        # ExplodingTensor reports NaN and Inf; this rule judges finite values.
        is_target = table.roles[i] == "label"
        least = self.min_targets if is_target else self.min_elements
        n = np.where(known, table["count"][i] - table.not_finite[i], 0.0)
        mean = np.where(n > 0, table["mean"][i], 0.0)
        m2 = np.where(n > 0, table["m2"][i], 0.0)
        found = _Merged(*np.full((5, len(columns)), np.nan))
        judged = np.flatnonzero(n[columns] > 0)
        if not len(judged):
            return found
        rows = np.flatnonzero(known)
        at = np.searchsorted(rows, columns[judged])
        # Columns x rows up to each column, the last row first.
        back = at[:, np.newaxis] - np.arange(self.num_steps)
        last = rows[np.maximum(back, 0)]
        counts = np.where(back >= 0, n[last], 0.0)
        up_to = np.cumsum(counts, axis=1)
        used = (back >= 0) & (up_to - counts < least)
        counts *= used
        total = np.where(up_to[:, -1] >= least, counts.sum(axis=1), np.nan)
        middle = (counts * mean[last]).sum(axis=1) / total
        spread = m2[last] * used + counts * (mean[last] - middle[:, np.newaxis]) ** 2
        found.mean[judged] = middle
        found.deviation[judged] = np.sqrt(spread.sum(axis=1) / total)
        n_zero = (table["zero"][i][last] * used).sum(axis=1)
        squares = spread.sum(axis=1) + total * middle**2
        is_sparse = (2 * n_zero > total) & (n_zero < total)
        of_others = np.sqrt(squares / np.where(is_sparse, total - n_zero, 1.0))
        found.size[judged] = np.where(is_sparse, of_others, found.deviation[judged])
        variance = spread.sum(axis=1) / total
        off = (spread - counts * variance[:, np.newaxis]) / total[:, np.newaxis]
        n_rows = used.sum(axis=1)
        error = np.sqrt((off**2).sum(axis=1) * n_rows / np.maximum(n_rows - 1, 1))
        found.error[judged] = np.sqrt(variance / total)
        found.at_least[judged] = np.sqrt(np.maximum(variance - ERRORS * error, 0.0))
        return found

    def _since(self, table: Table, i: int, j: int) -> int:
        """Return the first of the steps that are merged at a column."""
        rows = np.flatnonzero(table.known[i, : j + 1])[-self.num_steps :]
        n = (table["count"][i, rows] - table.not_finite[i, rows])[::-1].cumsum()
        is_target = table.roles[i] == "label"
        least = self.min_targets if is_target else self.min_elements
        n_used = int(np.searchsorted(n, least)) + 1
        return int(table.steps[rows[-n_used:][0]])

    def _describe(
        self, table: Table, i: int, mean: float, std: float, scale: float
    ) -> Description:
        kind = "target" if table.roles[i] == "label" else "input"
        is_far = abs(mean) > self.max_mean * scale
        if is_far:
            value, limit = mean, self.max_mean * scale
            said = f"The mean is {number(mean)}, far from 0"
            other = f"standard deviation {number(std)}"
        else:
            value = std
            is_large = std > self.max_std * scale
            limit = self.max_std * scale if is_large else self.min_std / scale
            said = (
                f"The standard deviation is {number(std)}, far "
                f"{'above' if is_large else 'below'} 1"
            )
            other = f"mean {number(mean)}"
        twice = _bytes_divided_twice(table, i)
        end = ", and undo the scaling in predictions" if kind == "target" else ""
        return Description(
            message=(
                f"{said} ({other}), so this {kind} is not normalized."
                f"{self._columns(table, i)}{twice}"
            ),
            value=value,
            threshold=limit,
            evidence=Evidence("mean", math.copysign(limit, mean))
            if is_far
            else Evidence("std", limit),
            advice=lambda words: (
                f"{'Divide bytes by 255 once. ' if twice else ''}Subtract the training "
                f"set's mean from each {kind} and divide by its standard deviation "
                f"({words.normalizing}). Use the same two numbers in validation{end}."
            ),
        )

    def _drowned(self, table: Table, i: int) -> tuple[int, int]:
        """Count the columns of a table that hardly vary beside others, and all columns.

        Constant columns do not count, since a model learns nothing from them.
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
                f"{drowned} of {plural(of, 'column')} vary by less than 1% of the "
                f"widest column's range, which drowns them.{self._columns(table, i)}"
            ),
            value=100.0 * drowned / of,
            threshold=50.0,
            advice=(
                "Subtract from each column its own mean and divide by its own standard "
                "deviation (axis=0; sklearn.preprocessing.StandardScaler), not by "
                "those of the whole table."
            ),
        )

    def _columns(self, table: Table, i: int) -> str:
        """Name the worst columns of a table, if a batch of values was saved."""
        x = _first_table(table, i)
        if x is None:
            return ""
        scale = np.hypot(x.mean(axis=0), x.std(axis=0))
        worst = np.argsort(-scale)[:SHOWN].tolist()
        text = ", ".join(
            f"{k} (mean {number(x[:, k].mean())}, deviation {number(x[:, k].std())})"
            for k in worst
        )
        return f" The largest of {plural(x.shape[1], 'column')} are {text}."


class _Placeholder(NamedTuple):
    """A number that stands apart from all others in some columns of a table.

    Attributes:
        n_columns: Columns that have one.
        of: Columns in all.
        column: The first of these; its number, the share of rows that have it, and the
            range of all others.
    """

    n_columns: int
    of: int
    column: int
    number: float
    share: float
    least: float
    most: float


def _bytes_divided_twice(table: Table, i: int) -> str:
    """Return a sentence if no value exceeds 1/255, and the largest is not far below."""
    known = table.known[i]
    low, high = float(table["min"][i][known].min()), float(table["max"][i][known].max())
    if table.roles[i] == "label" or low < 0 or not 0.8 < high * 255 <= 1 + 1e-6:
        return ""
    return (
        f" The largest value is {number(high)}, and 1/255 is 0.00392: were bytes "
        "divided by 255 twice, by the dataset and by the transform?"
    )


def _placeholder(table: Table, i: int) -> _Placeholder | None:
    """Return a number that stands for missing values; None: there is none.

    In several columns, some rows have one number exactly, which is further from all
    others than these are from each other.  Programs write -999, and others only once
    the table was scaled: whole numbers may be meant, and one number in all columns.
    """
    x = _first_table(table, i)
    if x is None or len(x) < TABLE or table.roles[i] == "label":
        return None
    found = []
    for end in (x.min(axis=0), x.max(axis=0)):
        is_end = x == end
        n = np.count_nonzero(is_end, axis=0)
        least = np.where(is_end, np.inf, x).min(axis=0)
        most = np.where(is_end, -np.inf, x).max(axis=0)
        with np.errstate(invalid="ignore"):  # Of columns that are not finite.
            gap = np.maximum(least - end, end - most)
            is_some = (n >= LEAST) & (n <= len(x) // 2) & (gap > most - least)
        is_some &= (end != np.round(end)) | np.isin(np.abs(end), NINES)
        for k in np.flatnonzero(is_some).tolist():
            if len(np.unique(x[~is_end[:, k], k])) >= OTHERS:
                rest = float(least[k]), float(most[k])
                found.append((k, float(end[k]), n[k] / len(x), *rest))
    found.sort()
    are_written = any(abs(value) in NINES for _, value, *_ in found)
    if not are_written and len({value for _, value, *_ in found}) < COLUMNS:
        return None
    return _Placeholder(len({k for k, *_ in found}), x.shape[1], *found[0])


def _describe_placeholder(found: _Placeholder) -> Description:
    return Description(
        message=(
            "Missing values seem to count as measurements: in "
            f"{found.n_columns:,} of {plural(found.of, 'column')}, one number stands "
            f"apart from all others. {percent(100 * found.share)} of the first rows "
            f"have exactly {number(found.number)} in column {found.column}, and the "
            f"others lie between {number(found.least)} and {number(found.most)}. A "
            "placeholder such as -999 takes most of the range."
        ),
        value=100.0 * found.n_columns / found.of,
        threshold=0.0,
        advice=(
            "Replace missing values before you scale: by the column's mean or median "
            "in the training data (sklearn.impute.SimpleImputer). A further column can "
            "say which values were missing."
        ),
    )


def _makes_updates_too_large(table: Table, j: int) -> bool:
    """Return whether the first updates are too large because the data are.

    Gradients of weights grow with inputs and, in regressions, with targets.  So do the
    updates, if the optimizer lets them: Adam's do not.

    Args:
        table: Has the first row of all parameters.
        j: The last column that counts.
    """
    updates = np.array([role == "update" for role in table.roles])
    first = updates[:, np.newaxis] & table.known & (table.ordinal == 1)
    columns = np.flatnonzero(first[:, : j + 1].any(axis=0))
    if not len(columns):
        return False
    at = int(columns[0])
    sizes = UpdateSizes.at(table, at)
    ratio = sizes.largest_ratio
    scale = _size(table, "model_input", at) * _size(table, "label", at)
    return (
        sizes.follow_gradients and TOO_LARGE < ratio <= BEARABLE * scale and scale > 1
    )


def _size(table: Table, role: str, j: int) -> float:
    """Return the largest root mean square of floating-point data, 1 at least."""
    rows = [
        i
        for i, its_role in enumerate(table.roles)
        if its_role == role and "float" in table.dtypes[i] and table.known[i, j]
    ]
    finite = np.where(table.not_finite[rows, j] == 0, table["l2"][rows, j], 0.0)
    roots = finite / np.sqrt(np.maximum(table["count"][rows, j], 1.0))
    return float(np.max(roots, initial=1.0))


class _Merged(NamedTuple):
    """What rows come to that are merged up to each column.

    Attributes:
        mean: Of all values.
        deviation: Their standard deviation.
        size: The deviation or, if most values are zero, the root mean square of the
            others.
        at_least: The least that the deviation may be, given how much it differs
            between the rows.
        error: The standard error of the mean.
    """

    mean: Floats
    deviation: Floats
    size: Floats
    at_least: Floats
    error: Floats


def _first_table(table: Table, i: int) -> Floats | None:
    """Return the first batch, samples x columns, if it is tabular and was saved.

    The first batch only: which others the table holds depends on the window.
    """
    first = table.known[i] & (table.ordinal[i] == 1)
    for step in table.steps[first].tolist():
        values = table.value(table.names[i], step)
        if values is not None and values.ndim == 2 and min(values.shape) > 1:
            return values.astype(np.float64)
    return None


def _are_counts(table: Table, i: int) -> bool:
    """Return whether an input holds integers, or one whole number for each sample.

    Tokens, times and indices do.  In evaluation, another argument of another type may
    stand in its place, so the first values decide.
    """
    for step in table.steps[table.ordinal[i] == 1].tolist():
        values = table.value(table.names[i], step)
        if values is not None:
            is_whole = values.dtype.kind in "iub"
            return is_whole or (
                values.ndim == 1 and bool((values == np.rint(values)).all())
            )
    return False


def _begins_with_zeros(table: Table, i: int) -> bool:
    """Return whether an input begins with zeros beside others, as a state does.

    A recurrent model may get its state back, whose numbers it has made itself.
    """
    first = np.flatnonzero(table.known[i] & (table.ordinal[i] == 1))
    is_other = i != table.roles.index(table.roles[i])
    return is_other and len(first) > 0 and not table["l2"][i, first].any()


def _is_changed(table: Table, i: int, model_info: ModelInfo | None) -> bool:
    """Return whether no layer got an input of the model unchanged at the first step.

    Then the model normalizes it by operations of its own, or passes it to a loss.  Nor
    can a layer get it if the model has no matrix to multiply it by: the kernel of a
    Gaussian process compares inputs with each other, whatever their mean.
    """
    first = np.flatnonzero(table.known[i] & (table.ordinal[i] == 1))
    if model_info is None or not len(first):
        return False
    parameters = model_info.parameters.values()
    if parameters and not any(
        is_matrix(each) or model_info.kind_of_leaf(each.module) in SCALED
        for each in parameters
    ):
        return True
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
    # Concatenated with something else, an input keeps its extremes.
    for name in ("min", "max"):
        extremes = column[name]
        is_like |= (extremes[layers] == extremes[i]) & (extremes[i] != 0)
    return len(layers) > 0 and not is_like.any()


def _begins_normalized(model_info: ModelInfo | None) -> bool:
    """Return whether the first module that changes its input normalizes it."""
    if model_info is None:
        return False
    parents = set(map(owner_of, model_info.modules))
    kinds = (
        model_info.kind_of_leaf(module)
        for path, module in model_info.modules.items()
        if path not in parents and path not in model_info.models
    )
    return next((kind for kind in kinds if kind not in PASSING), None) in NORMALIZING
