"""SlowSchedule: schedules in batches that the program steps once an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tdbg.config.needs import Needs
from tdbg.config.quantities import percent, plural
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import Description, Evaluation, Idle, TensorInfo, Window
from tdbg.run.findings import Severity, Stage
from tdbg.run.schedules import BATCH_SETTINGS, RateSchedule

__all__ = ["SlowSchedule"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSchedule(Rule):
    """Report schedules that are as long as the training but have hardly begun.

    Args:
        share: Percentage of its length up to which a schedule has hardly begun.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.RATE

    share: float = 50.0

    def __post_init__(self) -> None:
        check_number(self, "share", above=0.0, most=99.0)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Losses, or learning rates without a loss, whose steps are counted."""
        losses = Needs(collections=frozenset({"losses"}))
        return losses, Needs(collections=frozenset({"scalars"}))

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that no schedule with a length was seen, if so."""
        if any(info.schedules for info in training.model_infos):
            return ""
        return "tdbg saw no schedule of the learning rate that has a length"

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses and learning rates."""
        return tensor.role in {"loss", "scalar"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:  # noqa: ARG002
        """Judge nothing before the end: the number of steps is not known."""
        yield from ()

    def on_idle(self, idle: Idle) -> Iterator[Evaluation]:
        """Judge the schedules of a training that has ended."""
        info = idle.model_info
        if not idle.ended or info is None:
            return
        name = f"{next(iter(info.modules), 'model')}_output_0"
        for each in info.schedules:
            # A training that stops early may have as many steps as the schedule has
            # epochs, by chance.  Only some settings are never in epochs.
            is_sure = each.setting in BATCH_SETTINGS and each.steps > 1
            severity = Severity.WARNING if is_sure else Severity.INFO
            slow = severity if self._is_slow(each) else None
            yield idle.judge(name, slow, partial(self._describe, each))

    def _is_slow(self, schedule: RateSchedule) -> bool:
        is_whole = schedule.length == schedule.optimizer_steps
        return is_whole and 100 * schedule.steps <= self.share * schedule.length

    def _describe(self, schedule: RateSchedule) -> Description:
        length, steps = schedule.length, schedule.steps
        is_last = schedule.seen_at == schedule.optimizer_steps
        part = "" if is_last else f" in the first {schedule.seen_at:,} of them"
        return Description(
            message=(
                f"The schedule of the learning rate ({schedule.name}) has hardly "
                f"begun: it is {plural(length, 'step')} long, as many as the optimizer "
                f"made, but the program stepped it {plural(steps, 'time')}{part} "
                f"({percent(100 * steps / length)} of its length)."
            ),
            value=100 * steps / length,
            threshold=self.share,
            since=0,
            advice=(
                "Call scheduler.step() after each optimizer.step(), not once an epoch. "
                "To step it once an epoch, set its length "
                f"({schedule.setting}) to the number of epochs. If it is in epochs "
                "already, and the training stopped early, ignore this."
            ),
        )
