"""NotInOptimizer: parameters with gradients that are in no optimizer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs, with_beginning
from tdbg.rules.builtin.weights.first_weights import untrained
from tdbg.rules.builtin.weights.model_info_rule import (
    ModelInfoRule,
    evaluate_first,
    have_lasted,
)
from tdbg.rules.columns import GRADIENT, join_names
from tdbg.rules.registry import register
from tdbg.rules.window import Bools, Description, Evaluation, Table, TensorInfo
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo, owner_of

__all__ = ["NotInOptimizer"]

# How far a moving average may be from what it follows at the first step.
COPIED = 1e-3
# Frozen layers that still have their first weights: one may be meant so, as
# random features are; more have been forgotten, or were not loaded.
SEVERAL = 2
# What an optimizer has may be thawed, but not after so many steps of training.
SOON = 100


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NotInOptimizer(ModelInfoRule):
    """Report parameters that get gradients but are in no optimizer.

    And those that are frozen, though nothing was ever learned by them.

    Args:
        patience: Recorded steps that must have passed: an optimizer may be found
            at its first step only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP

    patience: int = 2

    @property
    def first_verdict(self) -> str:
        """What its first verdict needs."""
        return (
            f"a parameter that no optimizer has, at over {self.patience} recorded steps"
        )

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of gradients, and of weights at first."""
        weights = Needs(collections=frozenset({"weights"}), first_steps=1)
        return *with_beginning(Needs(collections=frozenset({"gradients"}))), weights

    def selects(self, tensor: TensorInfo) -> bool:
        """Select gradients and weights."""
        return tensor.role in {"gradient", "weight"}

    def judge(
        self,
        table: Table,
        model_info: ModelInfo,
        thawed: Mapping[str, int],
        steps: slice,
    ) -> Iterator[Evaluation]:
        """Compare gradients with the parameters of the optimizers."""
        if not model_info.complete:
            return
        whole = table
        table = whole.select(
            [i for i, role in enumerate(whole.roles) if role == "gradient"]
        )
        if not table.names:
            return
        names = [name.removeprefix(GRADIENT) for name in table.names]
        known = [model_info.parameters.get(name) for name in names]
        # A frozen parameter may hold an old gradient, and gets no new one.
        absent = np.array(
            [p is not None and p.requires_grad and p.optimizer is None for p in known]
        )
        held = [p.optimizer is not None for p in model_info.parameters.values()]
        decided = table.known[:, steps] & (table.ordinal[:, steps] >= self.patience)
        decided &= have_lasted(table, self.patience)[np.newaxis, steps]
        decided &= np.array([p is not None for p in known])[:, np.newaxis] & any(held)
        bad = decided & absent[:, np.newaxis]
        left = [n for n, is_absent in zip(names, absent, strict=True) if is_absent]
        # Thawed parameters are meant to be trained, and frozen layers to keep what
        # what they have learned.
        on_purpose = (
            _only_last_layers(held)
            and not any(name in thawed for name in left)
            and not untrained(whole, model_info, left)
        )
        yield evaluate_first(
            table,
            steps,
            table.names,
            bad=bad,
            decided=decided,
            severity=Severity.INFO if on_purpose else Severity.WARNING,
            describe=lambda j: self._describe(names, bad[:, j], on_purpose, held),
        )
        judged = decided.any(axis=0) & ~bad.any(axis=0)
        if judged.any():
            yield from self._judge_frozen(whole, model_info, steps, judged)

    def _judge_frozen(
        self, table: Table, model_info: ModelInfo, steps: slice, judged: Bools
    ) -> Iterator[Evaluation]:
        """Whether frozen layers have learned anything, and where they are."""
        parameters = model_info.parameters
        frozen = [
            name
            for name, p in parameters.items()
            if not p.requires_grad or p.optimizer is None
        ]
        trained = parameters.keys() - frozen
        found = [
            name
            for name in untrained(table, model_info, frozen)
            # Adversaries are frozen while the other one learns.
            if GRADIENT + name not in table.names
            and not _has_copy(table, name, trained)
        ]
        if not found:
            return
        is_last = frozen[-1:] == list(parameters)[-1:] and _is_of(frozen[-1], found)
        is_mistake = len(found) >= SEVERAL or is_last
        is_out = all(parameters[name].optimizer is None for name in found)
        late = steps.start
        if not is_out:
            soon = table.steps < table.steps[0] + SOON
            late = min(max(int(np.count_nonzero(soon)), steps.start), steps.stop)
        for part in (slice(steps.start, late), slice(late, steps.stop)):
            some = judged[part.start - steps.start : part.stop - steps.start]
            is_warning = is_mistake and part.start >= late
            if some.any():
                yield evaluate_first(
                    table,
                    part,
                    found[:1],
                    bad=some[np.newaxis],
                    decided=some[np.newaxis],
                    severity=Severity.WARNING if is_warning else Severity.INFO,
                    describe=lambda _: self._describe_frozen(
                        found, len(frozen), model_info
                    ),
                )

    def _describe_frozen(
        self, found: Sequence[str], n_frozen: int, model_info: ModelInfo
    ) -> Description:
        return Description(
            message=(
                f"{n_frozen} of {len(model_info.parameters)} parameters are frozen, "
                f"and {len(found)} of them, all that can be judged, are still as a "
                f"layer is initialized: nothing was ever learned there "
                f"({join_names(found)})"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                "let them learn (requires_grad_(True), before the optimizer is made); "
                "or, if pretrained weights were to be loaded, see what "
                "load_state_dict(..., strict=False) returns: it passes over all names "
                "that do not match (a prefix such as module.); if random features are "
                "meant, this is what they look like"
            ),
        )

    def _describe(
        self, names: Sequence[str], bad: Bools, on_purpose: bool, held: list[bool]
    ) -> Description:
        found = [name for name, is_bad in zip(names, bad, strict=True) if is_bad]
        return Description(
            message=(
                f"{len(found)} parameters get gradients but are in no optimizer, "
                f"which has {sum(held)}: {join_names(found)}"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                "only the last layers are trained; if that is meant, "
                "requires_grad_(False) for the others saves most of the backward"
                if on_purpose
                else "make the optimizer after the model is complete, or add them "
                "with optimizer.add_param_group; layers that were replaced, added or "
                "thawed (requires_grad_(True)) later are not in it by themselves"
            ),
        )


def _only_last_layers(held: Sequence[bool]) -> bool:
    """Whether the trained part is the end of the model, and less than half of it."""
    if not any(held):
        return False
    first = held.index(True)
    return all(held[first:]) and 0 < len(held) - first < first


def _is_of(name: str, found: Sequence[str]) -> bool:
    """Whether a parameter is of the same layer as one of these."""
    owner = owner_of(name)
    return any(owner_of(each) == owner for each in found)


def _has_copy(table: Table, name: str, trained: Collection[str]) -> bool:
    """Whether a parameter that is trained began with the same weights.

    A network that follows another one (a target, a moving average) is not frozen by
    mistake.
    """
    index = {each: i for i, each in enumerate(table.names)}
    own = _first_row(table, index[name])
    return any(
        np.allclose(_first_row(table, index[each]), own, rtol=COPIED, atol=0.0)
        for each in trained
        if each in index
    )


def _first_row(table: Table, i: int) -> list[float]:
    j = int(np.argmax(table.ordinal[i] == 1))
    fields = ("count", "l2", "mean", "min", "max")
    return [float(table[field][i, j]) for field in fields]
