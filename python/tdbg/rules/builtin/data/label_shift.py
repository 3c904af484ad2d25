"""LabelShift: models of sequences whose labels are not the next tokens."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.rules.builtin.probed_rule import ProbedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["LabelShift"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelShift(ProbedRule):
    """Report labels that are the inputs themselves, or the next token but one."""

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset({Fault.LABELS_ARE_INPUTS, Fault.LABELS_SKIP_ONE})
    question = "labels"

    def describe(self, observation: Observation) -> Description:
        """Say by how many places labels are shifted."""
        name = observation.names[0]
        if observation.fault is Fault.LABELS_ARE_INPUTS:
            return Description(
                message=(
                    f"The labels are the inputs of {name}, not shifted at all: a model "
                    "that sees no later token learns to copy the token that it is "
                    "given."
                ),
                value=0.0,
                threshold=1.0,
                advice=(
                    "Shift by one: compare logits[:, :-1] with tokens[:, 1:]. Give a "
                    "causal decoder target[:, :-1], and compare with target[:, 1:]. "
                    "Models of transformers shift labels themselves only where you "
                    "pass labels= to them."
                ),
            )
        return Description(
            message=(
                f"The labels are the inputs of {name}, shifted by two places: the "
                "model learns the next token but one."
            ),
            value=2.0,
            threshold=1.0,
            advice=(
                "Shift by one, in one place: either your data or your model (models "
                "of transformers do, if you pass labels= to them), not both."
            ),
        )
