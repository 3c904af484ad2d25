"""ExplodingTensor: the first tensor that holds NaN or infinities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs, with_beginning
from tdbg.rules.builtin.tensors.tensor_rule import TensorRule
from tdbg.rules.columns import held_before, join_names
from tdbg.rules.registry import register
from tdbg.rules.rule import ROLES, built_in, check_switch
from tdbg.rules.window import Description, Evaluation, Table, Window
from tdbg.run.findings import Evidence, Severity, Stage
from tdbg.stats.row_fields import NOT_FINITE_COUNTS

__all__ = ["ExplodingTensor"]

ACTIVATIONS = ROLES["inputs"] | {"output"}
STATE_ROLES = {"weight", "bias", "buffer", "optimizer_state"}
GRADIENT_ROLES = {
    "gradient",
    "gradient_unclipped",
    "gradient_local",
    "output_gradient",
}
# The advice if only losses were recorded.
ALONE = (
    "nothing but losses was recorded at this step: SaveConfig(statistics_interval=1) "
    "tells which tensor is the first; as a rule the learning rate is too high, so "
    "lower it or clip gradients; else look for log or a division at zero in the loss, "
    "and for labels out of range"
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodingTensor(TensorRule):
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
        """Rows of the collections; of inputs only those of the model."""
        requested = built_in(self.collections)
        if "inputs" in requested:
            requested = requested - {"inputs"} | {"model_inputs"}
        return with_beginning(Needs(collections=requested))

    @property
    def lookback(self) -> int:
        """The row before, which shows whether the tensor was finite then."""
        return 1

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Find the steps at which tensors stop being finite; name the first tensor."""
        for table in window.tables():
            yield self._judge(table, window)

    def _judge(self, table: Table, window: Window) -> Evaluation:
        bad = self._bad(table)
        severities = np.zeros(bad.shape, dtype=np.int8)
        if bad.any():
            already = held_before(bad, table.known).any(axis=0)
            begins = np.flatnonzero(bad.any(axis=0) & ~already)
            # The weights of a step existed before its forward pass.
            order = np.array([role not in STATE_ROLES for role in table.roles])
            by_time = np.argsort(order, kind="stable")
            first = by_time[np.argmax(bad[by_time][:, begins], axis=0)]
            severities[first, begins] = Severity.ERROR

        def describe(i: int, j: int) -> Description:
            return self._describe(table, window, i, j, np.flatnonzero(bad[:, j]))

        # What came first may be finite again while what it has spoiled is not.
        decided = (severities > 0) | ~np.logical_or.reduce(bad, axis=0)
        return table.judge(severities, describe, decided)

    def _bad(self, table: Table) -> NDArray[np.bool_]:
        """The rows that are not finite, except for infinities on purpose."""
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
            # Attention masks are -Inf on purpose.  An output of a module counts only
            # where it is new and another tensor of that step shows harm.
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
        model_info = window.model_info_at(step)
        owner = None if model_info is None else model_info.module_of(name)
        of = f" of a {owner}" if owner else ""
        rest = [table.names[k] for k in bad if k != i]
        besides = f"; after it {join_names(rest)}" if rest else ""
        # Losses are recorded at every step, other tensors less often.
        present = np.flatnonzero(table.present[:, j])
        is_alone = all(table.roles[k] == "loss" for k in present)
        n_bad = sum(table[field][i, j] for field in NOT_FINITE_COUNTS)
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
            evidence=Evidence("abs_max"),
            advice=ALONE if is_alone else _exploding_advice(table.roles[i]),
            # What the model is given is not of its own making.
            stage=Stage.SETUP if table.roles[i] == "model_input" else None,
        )


def _where(table: Table, window: Window, name: str, step: int) -> str:
    """Name the workers on which a tensor was not finite, if there are several."""
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


def _exploding_advice(role: str) -> str:
    """The advice, by the kind of the first tensor."""
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
