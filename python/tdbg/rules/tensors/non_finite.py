"""The first tensor that holds NaN or infinities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.needs import Needs, with_beginning
from tdbg.rules._base import ROLES, built_in
from tdbg.rules._checks import check_switch
from tdbg.rules.columns import held_before, others
from tdbg.rules.named import OfNamedTensors
from tdbg.rules.registry import register
from tdbg.rules.window import Description, Judgement, Table, Window

__all__ = ["ExplodingTensor"]

ACTIVATIONS = ROLES["inputs"] | {"output"}
STATE_ROLES = {"weight", "bias", "buffer", "optimizer_state"}
NOT_FINITE = ("nan", "positive_infinity", "negative_infinity")
GRADIENT_ROLES = {"gradient", "gradient_unclipped", "output_gradient"}
# What to do where nothing but losses was recorded.
ALONE = (
    "nothing but losses was recorded at this step: SaveConfig(statistics_interval=1) "
    "tells which tensor is the first; as a rule the learning rate is too high, so "
    "lower it or clip gradients; else look for log or a division at zero in the loss, "
    "and for labels out of range"
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodingTensor(OfNamedTensors):
    """Report the first tensor that holds NaN or infinities, in order of execution.

    Where one tensor is not finite all that follow from it are soon; only the one that
    came first is reported, with where it was and how many others there were.  The
    next report comes when all were finite again in between.

    Args:
        only_nan: Report NaN only.
        collections: Where to look.

    Raises:
        ConfigurationError: If a parameter is not of its kind.
    """

    severities = (Severity.ERROR,)

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
        OfNamedTensors.__post_init__(self)
        check_switch(self, "only_nan")

    @property
    def needs(self) -> tuple[Needs, ...]:
        """The rows of the collections; of inputs those of the model."""
        wanted = built_in(self.collections)
        if "inputs" in wanted:
            wanted = wanted - {"inputs"} | {"model_inputs"}
        return with_beginning(Needs(collections=wanted))

    @property
    def look_back(self) -> int:
        """The row before, which says whether it was so already."""
        return 1

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Find the steps at which it began, and the first tensor of each."""
        for table in window.tables():
            yield self._judge(table, window)

    def _judge(self, table: Table, window: Window) -> Judgement:
        bad = self._bad(table)
        levels = np.zeros(bad.shape, dtype=np.int8)
        if bad.any():
            already = held_before(bad, table.known).any(axis=0)
            begins = np.flatnonzero(bad.any(axis=0) & ~already)
            # The weights of a step were there before its forward.
            order = np.array([role not in STATE_ROLES for role in table.roles])
            by_time = np.argsort(order, kind="stable")
            first = by_time[np.argmax(bad[by_time][:, begins], axis=0)]
            levels[first, begins] = Severity.ERROR

        def describe(i: int, j: int) -> Description:
            return self._describe(table, window, i, j, np.flatnonzero(bad[:, j]))

        return table.judge(levels, describe, ~bad | (levels > 0))

    def _bad(self, table: Table) -> NDArray[np.bool_]:
        """Which rows are known not to be finite, and not on purpose."""
        roles = table.roles
        wrong = table["nan"]
        possible = table["negative_infinity"]
        if not self.only_nan:
            state = np.array([role not in ACTIVATIONS for role in roles], dtype=bool)
            minus = np.where(state[:, np.newaxis], possible, 0.0)
            wrong = wrong + table["positive_infinity"] + minus
        # The loss scaler skips a step because its gradients are not finite, and
        # lowers the scale: that is how mixed precision works.
        gradients = np.array([role in GRADIENT_ROLES for role in roles], dtype=bool)
        by_design = gradients[:, np.newaxis] & table.skipped[np.newaxis, :]
        bad: NDArray[np.bool_] = np.asarray((wrong > 0) & table.known & ~by_design)
        if not self.only_nan and bad.any():
            # Masks of attention are -Inf on purpose.  What a module gives counts
            # where it is new and something else at that step shows that it did harm.
            outputs = np.array([role == "output" for role in roles], dtype=bool)
            minus = (possible > 0) & outputs[:, np.newaxis] & table.known
            minus &= ~held_before(minus, table.known)
            bad |= minus & np.logical_or.reduce(bad, axis=0)
        return bad

    def _describe(
        self,
        table: Table,
        window: Window,
        i: int,
        j: int,
        bad: NDArray[np.intp],
    ) -> Description:
        name, step = table.names[i], int(table.steps[j])
        facts = window.facts_at(step)
        owner = None if facts is None else facts.module_of(name)
        of = f" of a {owner}" if owner else ""
        rest = [table.names[k] for k in bad if k != i]
        besides = f"; after it {others(rest)}" if rest else ""
        # Losses are recorded at every step, all else now and then.
        present = np.flatnonzero(table.present[:, j])
        is_alone = all(table.roles[k] == "loss" for k in present)
        n_bad = sum(table[field][i, j] for field in NOT_FINITE)
        return Description(
            message=(
                f"the first that is not finite: {table['nan'][i, j]:.0f} NaN, "
                f"{table['positive_infinity'][i, j]:.0f} +Inf and "
                f"{table['negative_infinity'][i, j]:.0f} -Inf among "
                f"{table['count'][i, j]:.0f} elements of this {table.roles[i]}{of}"
                f"{_where(table, window, name, step)}{besides}"
            ),
            value=float(n_bad),
            threshold=0.0,
            advice=ALONE if is_alone else _exploding_advice(table.roles[i]),
        )


def _where(table: Table, window: Window, name: str, step: int) -> str:
    """On which workers a tensor was not finite, where there are several."""
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
    return f", on {others(hit)} of {len(rows)} workers"


def _exploding_advice(role: str) -> str:
    """What to do, by what kind of tensor was the first."""
    if role in ROLES["inputs"]:
        return (
            "the data holds it already: check its loading and normalization, and "
            "leave out or repair such samples"
        )
    if role in STATE_ROLES:
        return (
            "the update of the step before made it so: lower the learning rate or "
            "clip gradients (torch.nn.utils.clip_grad_norm_), then go back to the "
            "last checkpoint before this step"
        )
    if role in GRADIENT_ROLES:
        return (
            "the forward was finite, its gradient is not: lower the learning rate or "
            "clip gradients (torch.nn.utils.clip_grad_norm_), and look for sqrt, log "
            "or a division at zero"
        )
    if role == "loss":
        return (
            "what went into the loss is finite, or was not captured: look for log or "
            "a division at zero in it, for labels out of range or all ignored, and "
            "compute it in float32"
        )
    return (
        "lower the learning rate, warm it up or clip gradients; look for log, exp or "
        "a division that overflows, and in float16 use a loss scale or bfloat16; then "
        "go back to the last checkpoint before this step"
    )
