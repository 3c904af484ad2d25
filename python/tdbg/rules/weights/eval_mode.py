"""Models that are trained in evaluation mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.facts import Facts
from tdbg.findings import Severity
from tdbg.modes import TRAINING
from tdbg.needs import Needs
from tdbg.rules._base import Rule
from tdbg.rules._checks import check_number
from tdbg.rules.columns import facts_of_steps, others
from tdbg.rules.registry import register
from tdbg.rules.window import (
    HEALTHY,
    LASTING,
    UNKNOWN,
    Description,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["TrainedInEvalMode"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedInEvalMode(Rule):
    """Report models that are trained in eval(), though layers of theirs mind.

    Args:
        num_steps: Steps for which it must have been so.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    num_steps: int = LASTING

    def __post_init__(self) -> None:
        check_number(self, "num_steps", least=1, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Nothing but steps: by losses, or rates where no loss is registered."""
        losses = Needs(collections=frozenset({"losses"}))
        return losses, Needs(collections=frozenset({"scalars"}))

    def selects(self, tensor: TensorInfo) -> bool:
        """What is recorded of steps of training in any case."""
        return tensor.role in {"loss", "scalar"}

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge steps by what was known of the model at them."""
        for table in window.tables(*TRAINING):
            for facts, steps in facts_of_steps(window, table):
                start = max(steps.start, table.start)
                if facts is not None and facts.modules and start < steps.stop:
                    new = slice(start, steps.stop)
                    yield self._judge(table, facts, new, _since(window, facts))

    def _judge(
        self, table: Table, facts: Facts, new: slice, since: int | None
    ) -> Judgement:
        steps = table.steps[new]
        known = table.known[:, new].any(axis=0)
        levels = np.where(known, HEALTHY, UNKNOWN).astype(np.int8)
        if since is not None:
            lasting = steps - since + 1 >= self.num_steps
            levels = np.where(known & lasting, int(Severity.WARNING), UNKNOWN)
        # It is of the model, for which its first output stands.
        name = f"{next(iter(facts.modules))}_output_0"
        return Judgement.of_one(
            name, steps, table.mode, levels, lambda _: _describe(facts, since or 0)
        )


def _since(window: Window, facts: Facts) -> int | None:
    """Since which step the model was trained so; None: it is not."""
    if not facts.evaluating:
        return None
    since = facts.step
    while (before := window.facts_at(since - 1)) is not None and before.evaluating:
        since = before.step
    return since


def _describe(facts: Facts, since: int) -> Description:
    found = facts.evaluating
    classes = Counter(facts.modules.get(path, "?") for path in found)
    kinds = ", ".join(f"{n} {kind}" for kind, n in classes.most_common(3))
    return Description(
        message=(
            f"the model is trained in eval(): since step {since} the optimizer uses "
            f"gradients of forwards that it made in evaluation mode, in which "
            f"{kinds} work otherwise than in training: {others(found)}"
        ),
        value=float(len(found)),
        threshold=0.0,
        advice=(
            "call model.train() before the training loop, and again after each "
            "validation: dropout does nothing in evaluation mode, and normalization "
            "uses running statistics that nobody updates. If that is meant, say so "
            "by hook.set_mode(ModeKeys.TRAIN)"
        ),
    )
