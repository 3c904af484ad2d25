"""TeacherMisuse: teachers that are trained, or that answer at random."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["TeacherMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherMisuse(ObservedRule):
    """Report teachers that the optimizer trains, and frozen ones that drop units."""

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset({Fault.TEACHER_LEARNS, Fault.TEACHER_DROPS})

    def describe(self, observation: Observation) -> Description:
        """Describe what the teacher does."""
        name = next(iter(observation.names), "teacher")
        if observation.fault is Fault.TEACHER_LEARNS:
            return _of_learning(name)
        return _of_dropping(name)


def _of_learning(name: str) -> Description:
    return Description(
        message=(
            f"The teacher is trained: {name} is in eval(), and yet the optimizer has "
            "its weights, and gradients of the distance to the other model reach them. "
            "The two meet somewhere between."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Give the optimizer the student's parameters only, and compute the "
            "teacher's answers under torch.no_grad() or detach() them. eval() does not "
            "stop gradients. To train both on purpose, put both into training mode."
        ),
    )


def _of_dropping(name: str) -> Description:
    return Description(
        message=(
            f"A frozen model is in training mode: {name} is asked for answers at each "
            "step, and its dropout makes them random, so that the same input gets "
            "another answer each time."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            f"Call {name}.eval() after each train() of a model that contains it. "
            "requires_grad_(False) and torch.no_grad() do not turn dropout off."
        ),
    )
