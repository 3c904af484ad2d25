"""ExplodingTensor: the first tensor with NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import conjoin, join_names
from tdbg.modes import TRAINING
from tdbg.rules.builtin.tensors.not_finite_causes import (
    GRADIENT_ROLES,
    PAST,
    STATE_ROLES,
    explained,
)
from tdbg.rules.builtin.tensors.tensor_rule import TensorRule
from tdbg.rules.columns import held_before
from tdbg.rules.registry import register
from tdbg.rules.rule import ROLES, built_in, check_switch
from tdbg.rules.window import Description, Evaluation, Table, Window
from tdbg.run.findings import Evidence, Severity, Stage
from tdbg.stats.row_fields import NOT_FINITE_COUNTS

__all__ = ["ExplodingTensor"]

WORDS = dict(zip(NOT_FINITE_COUNTS, ("NaN", "+Inf", "-Inf"), strict=True))
ACTIVATIONS = ROLES["inputs"] | {"output"}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodingTensor(TensorRule):
    """Report the first tensor with NaN or infinity, in order of execution.

    A tensor that is not finite soon spoils all that depend on it.  The rule reports
    only the first one, with its place and the number of others, and reports again
    after all tensors have been finite.  At steps whose loss, gradients and weights are
    known to be finite, the finding is an info: the model handles these values.

    Args:
        only_nan: Report NaN only.
        collections: Collections to look in.

    Raises:
        ConfigurationError: If a parameter is not of its kind.
    """

    severities = (Severity.INFO, Severity.ERROR)
    stage = Stage.NUMBERS

    only_nan: bool = False
    collections: tuple[str, ...] = (
        "losses",
        "outputs",
        "inputs",
        "weights",
        "biases",
        "gradients",
    )

    def __post_init__(self) -> None:
        TensorRule.__post_init__(self)
        check_switch(self, "only_nan")

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of the collections; among inputs, only those of the model."""
        requested = built_in(self.collections)
        if "inputs" in requested:
            requested = requested - {"inputs"} | {"model_inputs"}
        return with_beginning(Needs(collections=requested))

    @property
    def lookback(self) -> int:
        """The previous rows: was the tensor finite, and did losses rise?"""
        return PAST

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Find the steps at which tensors stop being finite, and the first tensor."""
        for table in window.tables():
            yield self._judge(table, window)

    def _judge(self, table: Table, window: Window) -> Evaluation:
        every = self._bad(table)
        harmless = every & _are_handled(table)[np.newaxis, :]
        bad = every & ~harmless
        severities = np.zeros(bad.shape, dtype=np.int8)
        for found, severity in (
            (harmless, Severity.INFO),
            (bad, Severity.ERROR),
        ):
            if found.any():
                first, begins = _first(table, found)
                severities[first, begins] = severity

        def describe(i: int, j: int) -> Description:
            if harmless[i, j]:
                return self._describe_harmless(table, window, i, j)
            return self._describe(table, window, i, j, np.flatnonzero(bad[:, j]))

        # The first tensor may be finite again while those that it spoiled are not.
        decided = (severities > 0) | ~every
        decided &= (severities > 0) | ~np.logical_or.reduce(bad, axis=0)
        return table.judge(severities, describe, decided)

    def _bad(self, table: Table) -> NDArray[np.bool_]:
        """Find the rows that are not finite, except for deliberate infinities."""
        roles = table.roles
        wrong = table["nan"]
        possible = table["negative_infinity"]
        if not self.only_nan:
            state = np.array([role not in ACTIVATIONS for role in roles], dtype=bool)
            minus = np.where(state[:, np.newaxis], possible, 0.0)
            wrong = wrong + table["positive_infinity"] + minus
        bad: NDArray[np.bool_] = np.asarray(
            (wrong > 0) & table.known & ~_by_design(table)
        )
        if not self.only_nan and bad.any():
            # Attention masks are -Inf on purpose.  In an output, -Inf counts only if
            # it is new and another tensor of the step shows harm.
            outputs = np.array([role == "output" for role in roles], dtype=bool)
            minus = (possible > 0) & outputs[:, np.newaxis] & table.known
            minus &= ~held_before(minus, table.known)
            bad |= minus & np.logical_or.reduce(bad, axis=0)
        return bad

    def _describe_harmless(
        self, table: Table, window: Window, i: int, j: int
    ) -> Description:
        fix = (
            "look for a division by zero, log or sqrt in this module."
            if table.roles[i] == "output"
            else "leave out or repair these samples."
        )
        return Description(
            message=(
                f"This {_place(table, window, i, j)} is not finite: "
                f"{_counted(table, i, j)}. The loss of this step is finite."
            ),
            value=float(sum(table[field][i, j] for field in NOT_FINITE_COUNTS)),
            threshold=0.0,
            evidence=Evidence("abs_max"),
            advice=(
                "If the model replaces or masks these values, do nothing. Otherwise, "
                f"{fix}"
            ),
        )

    def _describe(
        self,
        table: Table,
        window: Window,
        i: int,
        j: int,
        bad: NDArray[np.intp],
    ) -> Description:
        name, step = table.names[i], int(table.steps[j])
        rest = [table.names[k] for k in bad if k != i]
        besides = f" It spread to {join_names(rest)}." if rest else ""
        n_bad = sum(table[field][i, j] for field in NOT_FINITE_COUNTS)
        found = Description(
            message=(
                f"This {_place(table, window, i, j)} is the first tensor that "
                f"is not finite{_where(table, window, name, step)}: "
                f"{_counted(table, i, j)}.{besides}"
            ),
            value=float(n_bad),
            threshold=0.0,
            evidence=Evidence("abs_max"),
        )
        return explained(window, table, i, j, found)


def _by_design(table: Table) -> NDArray[np.bool_]:
    """Find the gradients, names x steps, that a loss scaler may make infinite.

    It skips a step whose gradients are not finite, and lowers the scale.
    """
    gradients = np.array([role in GRADIENT_ROLES for role in table.roles], dtype=bool)
    return np.asarray(gradients[:, np.newaxis] & table.skipped[np.newaxis, :])


def _are_handled(table: Table) -> NDArray[np.bool_]:
    """Find the steps at which all but inputs and outputs is known to be finite.

    A step of training needs a gradient to show it, besides a loss: ``where`` hides NaN
    from the loss and still passes NaN back.
    """
    roles, known = table.roles, table.known
    harm = known & (table.not_finite > 0) & ~_by_design(table)
    harm[[role in ACTIVATIONS for role in roles]] = False
    handled = ~harm.any(axis=0) & known[[role == "loss" for role in roles]].any(axis=0)
    if table.mode in TRAINING:
        handled &= known[[role in GRADIENT_ROLES for role in roles]].any(axis=0)
    return np.asarray(handled)


def _first(table: Table, bad: NDArray[np.bool_]) -> tuple[NDArray[np.intp], ...]:
    """Return the first tensor, and the column, wherever tensors stop being finite."""
    already = held_before(bad, table.known).any(axis=0)
    begins = np.flatnonzero(bad.any(axis=0) & ~already)
    # The weights of a step exist before its forward pass.
    order = np.array([role not in STATE_ROLES for role in table.roles])
    by_time = np.argsort(order, kind="stable")
    return by_time[np.argmax(bad[by_time][:, begins], axis=0)], begins


def _place(table: Table, window: Window, i: int, j: int) -> str:
    """``output of a Linear``."""
    model_info = window.model_info_at(int(table.steps[j]))
    owner = None if model_info is None else model_info.module_of(table.names[i])
    of = f" of a {owner}" if owner else ""
    return f"{table.roles[i].replace('_', ' ')}{of}"


def _counted(table: Table, i: int, j: int) -> str:
    """``it is NaN``, ``2 NaN and 1 -Inf among 4,096 elements``."""
    found = [(int(table[field][i, j]), word) for field, word in WORDS.items()]
    if table["count"][i, j] == 1:
        return f"it is {next(word for n, word in found if n)}"
    counts = conjoin([f"{n:,} {word}" for n, word in found if n])
    return f"{counts} among {table['count'][i, j]:,.0f} elements"


def _where(table: Table, window: Window, name: str, step: int) -> str:
    """Name the workers with a tensor that is not finite, if there are several."""
    if window.n_workers < 2:
        return ""
    rows = table.by_worker(name, step)
    hit = [
        worker
        for worker, row in rows.items()
        if row.nan + row.positive_infinity + row.negative_infinity
    ]
    if not hit or len(rows) < 2:
        return ""
    return f", on {join_names(hit)} of {len(rows)} workers"
