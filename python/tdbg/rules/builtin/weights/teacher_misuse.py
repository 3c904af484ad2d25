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

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset({Fault.TEACHER_LEARNS, Fault.TEACHER_DROPS})

    def severity_of(self, observation: Observation) -> Severity:
        """Return a warning, or an info if the teacher is one by its name only."""
        return Severity.INFO if "mode" in observation.words else Severity.WARNING

    def describe(self, observation: Observation) -> Description:
        """Describe what the teacher does."""
        name = next(iter(observation.names), "teacher")
        if observation.fault is Fault.TEACHER_LEARNS:
            return _of_learning(name, observation.words.get("mode", ""))
        return _of_dropping(name, observation.words.get("layers", ""))


def _of_learning(name: str, mode: str) -> Description:
    trained = (
        f"the optimizer has the weights of {name}"
        if mode
        else f"{name} is in eval(), and yet the optimizer has its weights"
    )
    return Description(
        message=(
            f"The teacher is trained: {trained}, and gradients of the distance to the "
            "other model reach them. The two meet somewhere between."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Give the optimizer the student's parameters only, and compute the "
            "teacher's answers under torch.no_grad() or detach() them. eval() does not "
            "stop gradients. If you train both on purpose (deep mutual learning), put "
            "both into training mode, and call neither of them teacher."
        ),
    )


def _of_dropping(name: str, layers: str) -> Description:
    reason = (
        "its normalizations make them depend on the other samples of the batch, and "
        "their running statistics go on moving"
        if layers
        else "its dropout makes them random, so that the same input gets another "
        "answer each time"
    )
    return Description(
        message=(
            f"A frozen model is in training mode: {name} is asked for answers at each "
            f"step, and {reason}."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            f"Call {name}.eval() after each train() of a model that contains it. "
            "requires_grad_(False) and torch.no_grad() do not change the mode."
        ),
    )
