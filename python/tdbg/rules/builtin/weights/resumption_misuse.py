"""ResumptionMisuse: trainings that go on with a part of what they were."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.config.quantities import number, plural
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["ResumptionMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ResumptionMisuse(ObservedRule):
    """Report resumed trainings whose optimizer or schedule begins anew.

    One of the two has been restored, which shows that the training is a resumed one.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset({Fault.OPTIMIZER_BEGINS_ANEW, Fault.SCHEDULE_BEGINS_ANEW})

    def describe(self, observation: Observation) -> Description:
        """Say which of the two begins anew."""
        name = next(iter(observation.names), "")
        steps = int(observation.numbers.get("steps", 0.0))
        optimizer = observation.words.get("optimizer", "")
        if observation.fault is Fault.OPTIMIZER_BEGINS_ANEW:
            return _optimizer(name, steps, optimizer)
        numbers = observation.numbers
        return _schedule(name, steps, optimizer, numbers["rate"], numbers["meant"])


def _optimizer(name: str, steps: int, optimizer: str) -> Description:
    return Description(
        message=(
            f"The training was resumed, but its optimizer ({optimizer}) begins anew: "
            f"the schedule ({name}) is at step {steps:,}, while the optimizer has no "
            "state. Its averages of gradients are lost, so the first updates are "
            "unlike those before."
        ),
        value=float(steps),
        threshold=0.0,
        since=0,
        advice=(
            "Save optimizer.state_dict() in the checkpoint, and call "
            "optimizer.load_state_dict() before you resume. If you mean the optimizer "
            "to begin anew, ignore this."
        ),
    )


def _schedule(
    name: str, steps: int, optimizer: str, rate: float, meant: float
) -> Description:
    return Description(
        message=(
            f"The training was resumed, but its schedule ({name}) begins anew: the "
            f"optimizer ({optimizer}) has made {plural(steps, 'step')} and has its "
            f"learning rate from then ({number(rate)}), while the schedule is at step "
            f"0, where it would be {number(meant)}."
        ),
        value=float(steps),
        threshold=0.0,
        since=0,
        advice=(
            "Save scheduler.state_dict() in the checkpoint, and call "
            "scheduler.load_state_dict() before you resume. If you mean to begin a new "
            "schedule, set the learning rate of the optimizer first."
        ),
    )
