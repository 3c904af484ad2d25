"""Parameters with gradients that no optimizer has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.facts import Facts
from tdbg.findings import Severity
from tdbg.needs import Needs, with_beginning
from tdbg.rules.columns import GRADIENT, others
from tdbg.rules.registry import register
from tdbg.rules.weights.of_model import OfModel, have_passed, one_for_all
from tdbg.rules.window import Bools, Description, Judgement, Table, TensorInfo

__all__ = ["NotInOptimizer"]


# How far numbers of a uniform distribution, so many at least, may be from its bound and
# its deviation.
UNIFORM = 0.1
LEAST_WEIGHTS = 64


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NotInOptimizer(OfModel):
    """Report parameters that get gradients but are in no optimizer.

    Args:
        patience: Recorded steps that must have passed: an optimizer may be found
            at its first step only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    patience: int = 2

    @property
    def needs(self) -> tuple[Needs, ...]:
        """The rows of gradients, and of weights as they were at first."""
        weights = Needs(collections=frozenset({"weights"}), first_steps=1)
        return *with_beginning(Needs(collections=frozenset({"gradients"}))), weights

    def selects(self, tensor: TensorInfo) -> bool:
        """Gradients, and weights."""
        return tensor.role in {"gradient", "weight"}

    def judge(
        self, table: Table, facts: Facts, thawed: Mapping[str, int], steps: slice
    ) -> Iterator[Judgement]:
        """Compare gradients with what the optimizers are known to hold."""
        if not facts.complete:
            return
        whole = table
        table = whole.select(
            [i for i, role in enumerate(whole.roles) if role == "gradient"]
        )
        if not table.names:
            return
        names = [name.removeprefix(GRADIENT) for name in table.names]
        known = [facts.parameters.get(name) for name in names]
        # What was frozen may hold a gradient of the time before, and gets no other.
        absent = np.array(
            [p is not None and p.requires_grad and p.optimizer is None for p in known]
        )
        held = [p.optimizer is not None for p in facts.parameters.values()]
        decided = table.known[:, steps] & (table.ordinal[:, steps] >= self.patience)
        decided &= have_passed(table, self.patience)[np.newaxis, steps]
        decided &= np.array([p is not None for p in known])[:, np.newaxis] & any(held)
        bad = decided & absent[:, np.newaxis]
        left = [n for n, is_absent in zip(names, absent, strict=True) if is_absent]
        # Who thaws parameters wants them trained, and who freezes layers wants what
        # they have learned.
        on_purpose = (
            _only_last_layers(held)
            and not any(name in thawed for name in left)
            and not _are_random(whole, facts, left)
        )
        yield one_for_all(
            table,
            steps,
            table.names,
            bad=bad,
            decided=decided,
            severity=Severity.INFO if on_purpose else Severity.WARNING,
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
                "with optimizer.add_param_group; layers that were replaced, added or "
                "thawed (requires_grad_(True)) later are not in it by themselves"
            ),
        )


def _are_random(table: Table, facts: Facts, names: Sequence[str]) -> bool:
    """Whether these weights began as PyTorch initializes them: nothing was learned.

    Linear layers and convolutions are uniform within 1 / sqrt(fan_in) of zero, which
    no training leaves: not up to the bound, and with that deviation.
    """
    judged = 0
    index = {name: i for i, name in enumerate(table.names)}
    for name in names:
        shape = facts.parameters[name].shape
        i = index.get(name)
        if i is None or len(shape) < 2 or math.prod(shape) < LEAST_WEIGHTS:
            continue
        rows = np.flatnonzero(table.known[i] & (table.ordinal[i] == 1))
        if not len(rows):
            continue
        j = int(rows[0])
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        largest = max(-table["min"][i, j], table["max"][i, j])
        root = table["l2"][i, j] / math.sqrt(table["count"][i, j])
        if not (
            (1 - UNIFORM) * bound <= largest <= (1 + 1e-6) * bound
            and abs(root * math.sqrt(3.0) / bound - 1) <= UNIFORM
        ):
            return False
        judged += 1
    return judged > 0


def _only_last_layers(held: Sequence[bool]) -> bool:
    """Whether what is trained is the end of the model, and less than half of it."""
    if not any(held):
        return False
    first = held.index(True)
    return all(held[first:]) and 0 < len(held) - first < first
