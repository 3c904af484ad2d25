"""TrainedInEvalMode: models that are trained in evaluation mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs
from tdbg.modes import TRAINING
from tdbg.rules.columns import join_names, model_info_of_steps
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.window import (
    LASTING,
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo

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
        """Losses, or learning rates without a loss: they have a row at each step."""
        losses = Needs(collections=frozenset({"losses"}))
        return losses, Needs(collections=frozenset({"scalars"}))

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses and learning rates."""
        return tensor.role in {"loss", "scalar"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge steps by the model info as of each step."""
        for table in window.tables(*TRAINING):
            for model_info, steps in model_info_of_steps(window, table):
                start = max(steps.start, table.start)
                if model_info is not None and model_info.modules and start < steps.stop:
                    new = slice(start, steps.stop)
                    yield self._judge(
                        table, model_info, new, _since(window, model_info)
                    )

    def _judge(
        self, table: Table, model_info: ModelInfo, new: slice, since: int | None
    ) -> Evaluation:
        steps = table.steps[new]
        known = table.known[:, new].any(axis=0)
        severities = np.where(known, OK, UNKNOWN).astype(np.int8)
        if since is not None:
            lasting = steps - since + 1 >= self.num_steps
            severities = np.where(known & lasting, int(Severity.WARNING), UNKNOWN)
        # The finding is about the model: report it at the first output.
        name = f"{next(iter(model_info.modules))}_output_0"
        return Evaluation.of_one(
            name,
            steps,
            table.mode,
            severities,
            lambda _: _describe(model_info, since or 0),
        )


def _since(window: Window, model_info: ModelInfo) -> int | None:
    """The step since which the model is trained in evaluation mode, or None."""
    if not model_info.evaluating:
        return None
    since = model_info.step
    while (before := window.model_info_at(since - 1)) is not None and before.evaluating:
        since = before.step
    return since


def _describe(model_info: ModelInfo, since: int) -> Description:
    found = model_info.evaluating
    classes = Counter(model_info.modules.get(path, "?") for path in found)
    kinds = ", ".join(f"{n} {kind}" for kind, n in classes.most_common(3))
    return Description(
        message=(
            f"the model is trained in eval(): since step {since} the optimizer uses "
            f"gradients of forwards that it made in evaluation mode, in which "
            f"{kinds} work otherwise than in training: {join_names(found)}"
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
