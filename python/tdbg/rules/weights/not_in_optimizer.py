"""Parameters with gradients that no optimizer has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.facts import Facts
from tdbg.findings import Severity
from tdbg.needs import Needs, with_beginning
from tdbg.rules.columns import GRADIENT, others
from tdbg.rules.registry import register
from tdbg.rules.weights.as_initialized import untrained
from tdbg.rules.weights.of_model import OfModel, have_passed, one_for_all
from tdbg.rules.window import Bools, Description, Judgement, Table, TensorInfo

__all__ = ["NotInOptimizer"]


# Layers that are still as PyTorch makes them: one or two may be random features, which
# somebody wants; so many are a network that somebody has meant to load.
A_NETWORK = 3


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NotInOptimizer(OfModel):
    """Report parameters that get gradients but are in no optimizer.

    And those that are frozen, though nothing was ever learned by them.

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
            and not untrained(whole, facts, left)
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
        # Where the rest gets gradients nobody has frozen it.
        judged = decided.any(axis=0) & ~bad.any(axis=0)
        if judged.any() and _only_last_layers(held):
            yield from self._judge_frozen(whole, facts, steps, judged)

    def _judge_frozen(
        self, table: Table, facts: Facts, steps: slice, judged: Bools
    ) -> Iterator[Judgement]:
        """Whether the layers before those that are trained have learned anything."""
        parameters = facts.parameters.items()
        frozen = [name for name, p in parameters if p.optimizer is None]
        found = untrained(table, facts, frozen)
        if len(found) < 2:
            return
        yield one_for_all(
            table,
            steps,
            found[:1],
            bad=judged[np.newaxis],
            decided=judged[np.newaxis],
            severity=Severity.WARNING if len(found) >= A_NETWORK else Severity.INFO,
            describe=lambda _: self._describe_frozen(found, len(frozen)),
        )

    def _describe_frozen(self, found: Sequence[str], n_frozen: int) -> Description:
        return Description(
            message=(
                f"only the last layers are trained, and of the {n_frozen} parameters "
                f"that are frozen before them {len(found)}, all that can be judged, "
                "are still as PyTorch initializes them: nothing was ever learned there "
                f"({others(found)})"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=(
                "see whether pretrained weights were meant to be loaded: "
                "load_state_dict(..., strict=False) passes over all names that do not "
                "match (a prefix such as module.) and returns them; if random "
                "features are meant, this is what they look like"
            ),
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


def _only_last_layers(held: Sequence[bool]) -> bool:
    """Whether what is trained is the end of the model, and less than half of it."""
    if not any(held):
        return False
    first = held.index(True)
    return all(held[first:]) and 0 < len(held) - first < first
