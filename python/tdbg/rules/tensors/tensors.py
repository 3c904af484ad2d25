"""Tensors of any kind: values that are no numbers, and values that never change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.needs import Needs
from tdbg.rules._base import (
    ROLES,
    Rule,
    built_in,
    check_names,
    check_number,
    check_regex,
    selects_by,
)
from tdbg.rules.columns import facts_of_steps, held_before, others, parameter_of
from tdbg.rules.registry import register
from tdbg.rules.window import FIELDS, Description, Judgement, Table, TensorInfo, Window

__all__ = ["ExplodingTensor", "UnchangedTensor"]

ACTIVATIONS = ROLES["inputs"] | {"output"}
STATE_ROLES = {"weight", "bias", "buffer", "optimizer_state"}
NOT_FINITE = ("nan", "positive_infinity", "negative_infinity")
GRADIENT_ROLES = {"gradient", "gradient_unclipped", "output_gradient"}
GRADIENT_PREFIX = "gradient/"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodingTensor(Rule):
    """Report the first tensor that holds NaN or infinities, in order of execution.

    Where one tensor is not finite all that follow from it are soon; only the one that
    came first is reported, with where it was and how many others there were.  The
    next report comes when all were finite again in between.

    Args:
        only_nan: Report NaN only.
        collections: Where to look.
        tensor_regex: Look at tensors of such names too.

    Raises:
        ConfigurationError: If a parameter is not of its kind.
    """

    only_nan: bool = False
    collections: tuple[str, ...] = (
        "losses",
        "outputs",
        "inputs",
        "weights",
        "biases",
        "gradients",
    )
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_names(self, "collections")
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs:
        """The rows of the collections; of inputs those of the model."""
        wanted = built_in(self.collections)
        if "inputs" in wanted:
            wanted = wanted - {"inputs"} | {"model_inputs"}
        return Needs(collections=wanted)

    @property
    def look_back(self) -> int:
        """The row before, which says whether it was so already."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """What the collections or the expression name."""
        return selects_by(tensor, self.collections, self.tensor_regex)

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
            advice=_exploding_advice(table.roles[i]),
        )


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedTensor(Rule):
    """Report tensors that stay the same over several recorded steps.

    All fields of the row must be equal; where values were captured too, these.  A
    weight or bias is judged only at steps at which it received a gradient, so that
    frozen parameters are not reported.

    Args:
        num_steps: How many recorded steps must be equal.
        rtol: Relative difference that counts as equal.
        atol: Absolute difference that counts as equal.
        collections: Where to look.
        tensor_regex: Look at tensors of such names too.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    num_steps: int = 3
    rtol: float = 0.0
    atol: float = 0.0
    collections: tuple[str, ...] = ("weights",)
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "num_steps", least=2, whole=True)
        check_number(self, "rtol", least=0.0)
        check_number(self, "atol", least=0.0)
        check_names(self, "collections")
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs:
        """The rows of the collections, and of the gradients of parameters."""
        wanted = built_in(self.collections)
        if wanted & {"weights", "biases"}:
            wanted |= {"gradients"}
        return Needs(collections=wanted)

    @property
    def look_back(self) -> int:
        """The steps to compare with."""
        return self.num_steps - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """What the collections or the expression name, and the gradients."""
        if tensor.role == "gradient":
            return True
        return selects_by(tensor, self.collections, self.tensor_regex)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Compare every row with the one before it."""
        for table in window.tables():
            chosen = [i for i in range(len(table.names)) if self._is_judged(table, i)]
            if chosen:
                trained = self._trained(table, chosen)
                judged = table.select(chosen)
                self._leave_out_absent(window, judged, trained)
                yield self._judge(judged, trained)

    @staticmethod
    def _leave_out_absent(
        window: Window, table: Table, trained: NDArray[np.bool_]
    ) -> None:
        """Parameters that no optimizer has are for NotInOptimizer."""
        for facts, steps in facts_of_steps(window, table):
            if facts is None or not facts.complete:
                continue
            for i, name in enumerate(table.names):
                parameter = parameter_of(facts, name)
                if parameter is not None and parameter.optimizer is None:
                    trained[i, steps] = False

    def _is_judged(self, table: Table, i: int) -> bool:
        info = TensorInfo(name=table.names[i], role=table.roles[i])
        if info.role != "gradient":
            return True
        return selects_by(info, self.collections, self.tensor_regex)

    @staticmethod
    def _trained(table: Table, chosen: list[int]) -> NDArray[np.bool_]:
        """Where a row, if it is of a parameter, has a gradient beside it."""
        index = {name: i for i, name in enumerate(table.names)}
        result = np.ones((len(chosen), len(table.steps)), dtype=bool)
        for row, i in enumerate(chosen):
            if table.roles[i] in {"weight", "bias"}:
                gradient = index.get(GRADIENT_PREFIX + table.names[i])
                result[row] = False if gradient is None else table.present[gradient]
        return result

    def _judge(self, table: Table, trained: NDArray[np.bool_]) -> Judgement:
        # The weights after a skipped step are, rightly, those before it.
        known = table.known & trained & ~table.skipped[np.newaxis, :]
        # What is NaN throughout stays so; that is for ExplodingTensor.
        known &= (table.not_finite < table["count"]) | (table["count"] == 0)
        same, compared = self._same_as_before(table, known)
        streak = table.streak(same, known)
        fires = streak >= self.num_steps - 1
        fires[:, : table.start] = False
        for i, j in np.argwhere(fires):
            if self._values_differ(table, int(i), int(j)):
                fires[i, j] = same[i, j] = False
        levels = np.where(fires, int(Severity.WARNING), 0)

        def describe(i: int, j: int) -> Description:
            unchanged = int(np.count_nonzero(fires[:, j]))
            judged = int(np.count_nonzero(known[:, j]))
            return Description(
                message=(
                    f"the same at {self.num_steps} recorded steps in a row, within "
                    f"rtol {self.rtol:g} and atol {self.atol:g} "
                    f"(mean {table['mean'][i, j]:.6g}, l2 {table['l2'][i, j]:.6g})"
                ),
                value=0.0,
                threshold=self.rtol,
                advice=(
                    f"{unchanged} of {judged} tensors do not change: see that the "
                    "optimizer was given these parameters, that its learning rate is "
                    "not zero, and that updates are not below the precision of the "
                    "weights (bfloat16: 0.4 %)"
                ),
            )

        return table.judge(levels, describe, known & compared & (fires | ~same))

    def _same_as_before(
        self, table: Table, known: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each row equals the one before it, and whether there is one."""
        n_steps = len(table.steps)
        at = np.arange(n_steps)
        last = np.maximum.accumulate(np.where(table.present, at, -1), axis=1)
        before = np.full_like(last, -1)
        before[:, 1:] = last[:, :-1]
        broken = ~table.usable | table.skipped
        wall = np.maximum.accumulate(np.where(broken, at, -1))
        index = np.maximum(before, 0)
        compared = known & (before > wall) & np.take_along_axis(known, index, axis=1)
        same = compared.copy()
        for name in sorted(FIELDS, key=lambda name: name != "l2"):
            if not same.any():
                break  # Norms differ first, and nearly always.
            new = table[name]
            old = np.take_along_axis(new, index, axis=1)
            with np.errstate(invalid="ignore"):
                near = np.abs(new - old) <= self.atol + self.rtol * np.abs(old)
            same &= near | (new == old) | (np.isnan(new) & np.isnan(old))
        return same, compared

    def _values_differ(self, table: Table, i: int, j: int) -> bool:
        rows = np.flatnonzero(table.present[i, : j + 1])[-self.num_steps :]
        name = table.names[i]
        new = table.value(name, int(table.steps[j]))
        old = table.value(name, int(table.steps[rows[0]])) if new is not None else None
        if new is None or old is None or new.shape != old.shape:
            return False
        if self.rtol == self.atol == 0:
            return new.tobytes() != old.tobytes()
        a, b = new.astype(np.float64), old.astype(np.float64)
        return not np.allclose(a, b, self.rtol, self.atol, equal_nan=True)


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
