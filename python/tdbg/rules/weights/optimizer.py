"""Optimizers: learning rates of zero, and parameters that are not trained."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.facts import Facts
from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.needs import Needs
from tdbg.rules._base import Rule, check_number
from tdbg.rules.columns import facts_of_steps, others
from tdbg.rules.registry import register
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Description,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["MissingGradient", "NotInOptimizer", "ZeroLearningRate"]

Bools = NDArray[np.bool_]

RATE = re.compile(r"^scalar/optimizer(_\d+)?/.*/lr$")
GRADIENT = "gradient/"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroLearningRate(Rule):
    """Report learning rates that are zero.

    Args:
        patience: Recorded steps in a row at which it must be: a schedule may begin or
            turn at zero.
        error_patience: From so many on it is an error if all rates are zero.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    patience: int = 3
    error_patience: int = 20

    def __post_init__(self) -> None:
        check_number(self, "patience", least=1, whole=True)
        check_number(self, "error_patience", least=self.patience, whole=True)

    @property
    def needs(self) -> Needs:
        """The numbers of optimizers."""
        return Needs(collections=frozenset({"scalars"}))

    @property
    def look_back(self) -> int:
        """The steps that patience counts."""
        return self.error_patience - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Learning rates of groups of parameters."""
        return RATE.match(tensor.name) is not None

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge each rate by its streak of zeros, and all of them together."""
        for table in window.tables(ModeKeys.TRAIN, ModeKeys.GLOBAL):
            yield self._judge(table)

    def _judge(self, table: Table) -> Judgement:
        known = table.known
        zero = known & (table["mean"] == 0)
        # That a step was skipped says nothing about the rate.
        streak = _streak(zero, known)
        all_zero = np.where(known, zero, True).all(axis=0) & zero.any(axis=0)
        levels = np.where(streak >= self.patience, int(Severity.WARNING), HEALTHY)
        severe = (streak >= self.error_patience) & all_zero[np.newaxis, :]
        levels[severe] = Severity.ERROR

        def describe(i: int, j: int) -> Description:
            return self._describe(
                n_zero=int(np.count_nonzero(zero[:, j])),
                n_rates=int(np.count_nonzero(known[:, j])),
                largest=float(np.max(table["mean"][known[:, j], j])),
                patience=min(int(streak[i, j]), self.error_patience),
            )

        decided = ~(zero & (streak < self.patience))
        return table.judge(levels, describe, known & decided)

    def _describe(
        self, *, n_zero: int, n_rates: int, largest: float, patience: int
    ) -> Description:
        message = (
            f"the learning rate was 0 at {patience} recorded steps in a row; that of "
            f"{n_zero} of {n_rates} groups is"
        )
        if n_zero == n_rates:
            advice = (
                "no parameter changes any more: see where the schedule has ended or "
                "was stepped too often (steps for epochs), and whether the rate was "
                "set at all"
            )
        else:
            advice = (
                f"others have up to {largest:.3g}: if these parameters are meant to "
                "be frozen, requires_grad_(False) saves their gradients; if not, "
                "give the group its own rate"
            )
        return Description(message=message, value=0.0, threshold=0.0, advice=advice)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MissingGradient(Rule):
    """Report parameters that require a gradient and never get one, while others do.

    Args:
        patience: Recorded steps with gradients of others that must have passed.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    patience: int = 5

    def __post_init__(self) -> None:
        check_number(self, "patience", least=1, whole=True)

    @property
    def needs(self) -> Needs:
        """The rows of gradients."""
        return Needs(collections=frozenset({"gradients"}))

    @property
    def anchor(self) -> int:
        """The first row of each gradient, which says that there was one."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Gradients."""
        return tensor.role == "gradient"

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Compare what requires gradients with what has had some so far."""
        for table in window.tables(ModeKeys.TRAIN, ModeKeys.GLOBAL):
            for facts, steps in facts_of_steps(window, table):
                start = max(steps.start, table.start)
                if facts is not None and start < steps.stop:
                    yield self._judge(table, facts, slice(start, steps.stop))

    def _judge(self, table: Table, facts: Facts, steps: slice) -> Judgement:
        # What no optimizer has is for NotInOptimizer.
        names = [
            name
            for name, parameter in facts.parameters.items()
            if parameter.requires_grad
            and (parameter.optimizer is not None or not facts.complete)
        ]
        index = {name.removeprefix(GRADIENT): i for i, name in enumerate(table.names)}
        rows = np.array([index.get(name, -1) for name in names], dtype=np.intp)
        seen = np.logical_or.accumulate(table.present, axis=1)[:, steps]
        known = table.known[:, steps].any(axis=0)
        n_rows = table.ordinal[:, steps].max(axis=0, initial=0)
        had = np.zeros((len(names), seen.shape[1]), dtype=bool)
        had[rows >= 0] = seen[rows[rows >= 0]]
        judged = known & (n_rows >= self.patience)
        judged &= _both_kinds(names, had)
        missing = ~had & judged[np.newaxis, :]
        return _one_for_all(
            names=[GRADIENT + name for name in names],
            table=table,
            steps=steps,
            bad=missing,
            decided=np.broadcast_to(judged, had.shape),
            severity=np.full(had.shape[1], int(Severity.WARNING)),
            describe=lambda j: self._describe(names, missing[:, j], facts),
        )

    def _describe(
        self, names: Sequence[str], missing: Bools, facts: Facts
    ) -> Description:
        found = [name for name, bad in zip(names, missing, strict=True) if bad]
        module = facts.parameters[found[0]].module
        return Description(
            message=(
                f"{len(found)} of {len(names)} parameters that require a gradient "
                f"have had none at {self.patience} recorded steps and more: "
                f"{others(found)}"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                f"see whether the {module} of {found[0]} is used in the forward, and "
                "whether a detach(), .data, .item(), a conversion to NumPy or "
                "no_grad() between it and the loss cuts it off; what is not to be "
                "trained needs no gradient: requires_grad_(False)"
            ),
        )


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NotInOptimizer(Rule):
    """Report parameters that get gradients but are in no optimizer.

    Args:
        patience: Recorded steps that must have passed: an optimizer may be found
            at its first step only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    patience: int = 2

    def __post_init__(self) -> None:
        check_number(self, "patience", least=1, whole=True)

    @property
    def needs(self) -> Needs:
        """The rows of gradients."""
        return Needs(collections=frozenset({"gradients"}))

    def selects(self, tensor: TensorInfo) -> bool:
        """Gradients."""
        return tensor.role == "gradient"

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Compare gradients with what the optimizers are known to hold."""
        for table in window.tables(ModeKeys.TRAIN, ModeKeys.GLOBAL):
            for facts, steps in facts_of_steps(window, table):
                start = max(steps.start, table.start)
                if facts is not None and facts.complete and start < steps.stop:
                    yield self._judge(table, facts, slice(start, steps.stop))

    def _judge(self, table: Table, facts: Facts, steps: slice) -> Judgement:
        names = [name.removeprefix(GRADIENT) for name in table.names]
        known = [facts.parameters.get(name) for name in names]
        absent = np.array([p is not None and p.optimizer is None for p in known])
        held = [p.optimizer is not None for p in facts.parameters.values()]
        decided = table.known[:, steps] & (table.ordinal[:, steps] >= self.patience)
        decided &= np.array([p is not None for p in known])[:, np.newaxis] & any(held)
        bad = decided & absent[:, np.newaxis]
        on_purpose = _only_last_layers(held)
        severity = np.full(
            bad.shape[1], int(Severity.INFO if on_purpose else Severity.WARNING)
        )
        return _one_for_all(
            names=table.names,
            table=table,
            steps=steps,
            bad=bad,
            decided=decided,
            severity=severity,
            describe=lambda j: self._describe(names, bad[:, j], on_purpose, held),
        )

    def _describe(
        self, names: Sequence[str], bad: Bools, on_purpose: bool, held: list[bool]
    ) -> Description:
        found = [name for name, is_bad in zip(names, bad, strict=True) if is_bad]
        return Description(
            message=(
                f"{len(found)} parameters get gradients but are in no optimizer, "
                f"which has {sum(held)}: {others(found)}"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                "only the last layers are trained; if that is meant, "
                "requires_grad_(False) for the others saves most of the backward"
                if on_purpose
                else "make the optimizer after the model is complete, or add them "
                "with optimizer.add_param_group; layers that were replaced or added "
                "later are not in it by themselves"
            ),
        )


def _only_last_layers(held: Sequence[bool]) -> bool:
    """Whether what is trained is the end of the model, and less than half of it."""
    if not any(held):
        return False
    first = held.index(True)
    return all(held[first:]) and 0 < len(held) - first < first


def _both_kinds(names: Sequence[str], had: Bools) -> Bools:
    """At which steps both weights and biases have had gradients, if there are both.

    Otherwise the gradients of one kind are not captured.
    """
    biases = np.array(["bias" in name.rpartition(".")[2] for name in names], dtype=bool)
    result: Bools = np.logical_or.reduce(had, axis=0)
    for kind in (biases, ~biases):
        if kind.any():
            result &= had[kind].any(axis=0)
    return result


def _one_for_all(
    *,
    names: Sequence[str],
    table: Table,
    steps: slice,
    bad: Bools,
    decided: Bools,
    severity: NDArray[np.int_],
    describe: Callable[[int], Description],
) -> Judgement:
    """One finding at the first name that is bad; the others are left undecided."""
    levels = np.where(decided & ~bad, HEALTHY, UNKNOWN).astype(np.int8)
    at = np.flatnonzero(bad.any(axis=0))
    if len(at):
        levels[np.argmax(bad[:, at], axis=0), at] = severity[at]
    return Judgement(
        names=tuple(names),
        steps=table.steps[steps],
        mode=table.mode,
        levels=levels,
        describe=lambda _, j: describe(j),
    )


def _streak(holds: Bools, known: Bools) -> NDArray[np.int64]:
    """For how many known cells in a row it has held; those between are passed over."""
    counted = np.cumsum(known, axis=1)
    reset = np.where(known & ~holds, counted, 0)
    return np.where(holds, counted - np.maximum.accumulate(reset, axis=1), 0)
