"""RepeatedOrder: batches that come in the same order in every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tdbg.config.quantities import plural
from tdbg.rules.builtin.data.sample_rule import SampleRule, SampleVerdict
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.samples import Order, SampleFacts
from tdbg.rules.window import Description
from tdbg.run.findings import Severity

__all__ = ["RepeatedOrder"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedOrder(SampleRule):
    """Report batches that come in the same order in every epoch.

    Args:
        epochs: How many epochs in one order make a finding.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    epochs: int = 3

    def __post_init__(self) -> None:
        check_number(self, "epochs", least=3, whole=True)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return f"{plural(self.epochs, 'epoch')} with 4 batches or more"

    def verdicts(self, facts: SampleFacts) -> Iterator[SampleVerdict]:
        """Judge the order of the batches."""
        order = facts.order
        if order is not None and order.rounds >= self.epochs:
            severity = Severity.WARNING if _shuffles(order) else Severity.INFO
            yield SampleVerdict(
                severity=severity, describe=lambda: self._describe(order)
            )
        elif facts.trained:
            yield SampleVerdict(severity=None)

    def _describe(self, order: Order) -> Description:
        message = (
            f"The batches come in the same order in every epoch: {order.period:,} "
            f"batches, {int(order.rounds):,} times."
        )
        sampler = order.loader.get("sampler")
        if not _shuffles(order):
            message += " That is fine if the order is meant, as that of a time series."
            advice = (
                "Otherwise shuffle the training data anew in each epoch: with the same "
                "neighbours in each batch, the model learns somewhat less."
            )
        elif sampler == "DistributedSampler":
            message += f" The loader is to shuffle, by its {sampler}."
            advice = (
                "Call sampler.set_epoch(epoch) at the beginning of each epoch. Without "
                "it, the sampler shuffles by the same seed each time."
            )
        else:
            message += f" The loader is to shuffle, by its {sampler}."
            advice = (
                "Seed once, before the first epoch: something in the loop seeds the "
                "random generator, or makes the loader's generator, again in each "
                "epoch, so that each shuffle is the same one."
            )
        return Description(
            message=message,
            value=float(int(order.rounds)),
            threshold=float(self.epochs),
            since=order.step,
            advice=advice,
        )


def _shuffles(order: Order) -> bool:
    """Whether the batches are those of an epoch of a loader that claims to shuffle."""
    loader = order.loader
    return loader.get("shuffles") is True and loader.get("batches") == order.period
