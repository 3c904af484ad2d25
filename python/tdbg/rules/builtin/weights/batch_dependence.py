"""BatchDependence: models whose answer for a sample depends on its batch."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.rules.builtin.probed_rule import ProbedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["BatchDependence"]

_ON = {
    "place": "on its place in the batch",
    "others": "on the other samples in the batch",
    "order": "on the order of the batch, since it returns its answers in another one",
}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDependence(ProbedRule):
    """Report models in evaluation mode that mix the samples of a batch."""

    severities = (Severity.WARNING,)
    stage = Stage.SETUP
    faults = frozenset({Fault.SAMPLES_ARE_MIXED})
    question = "samples"
    explained_by = frozenset(
        {Fault.NORM_OF_BATCH, Fault.RECURRENT_OVER_BATCH, Fault.SOFTMAX_OF_BATCH}
    )

    def describe(self, observation: Observation) -> Description:
        """Say what else the answer depends on."""
        change = observation.numbers.get("change", 0.0)
        depends_on = observation.words.get("depends_on", "others")
        return Description(
            message=(
                f"What {observation.names[0]} answers for a sample depends "
                f"{_ON.get(depends_on, _ON['others'])}: in eval(), moving the samples "
                f"changes their outputs by {change:.2g} standard deviations (median)."
            ),
            value=change,
            threshold=0.0,
            advice=_advice(depends_on),
        )


def _advice(depends_on: str) -> str:
    if depends_on == "place":
        return (
            "Look for an operation that takes the batch for another axis: positions "
            "indexed by x.size(0), a layer that needs batch_first=True, a view or "
            "reshape that should be a transpose or permute. Dimension 0 is the batch."
        )
    if depends_on == "order":
        return (
            "If forward sorts the samples, as pack_padded_sequence may ask for, put "
            "the answers back: outputs[order.argsort()]. Or leave the order as it is, "
            "and pass enforce_sorted=False."
        )
    return (
        "Look for an operation over the wrong axis: softmax, normalize, mean or std "
        "with dim=0, attention without batch_first=True, a reshape that mixes samples. "
        "If your model compares samples on purpose, drop this rule."
    )
