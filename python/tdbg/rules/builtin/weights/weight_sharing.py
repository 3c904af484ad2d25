"""WeightSharing: weights that are shared by accident, and ties that are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tdbg.config.quantities import join_names
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["WeightSharing"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSharing(ObservedRule):
    """Report ties that are lost, and weights that are shared by accident.

    The rule finds

    - weights that a model declares to be tied, and that are two parameters;
    - weights that were one parameter when the model was registered, and are two now;
    - an output layer that begins as a copy of the embedding;
    - two parameters in the same memory, each of which an optimizer steps;
    - one layer in all places of a list;
    - an ensemble or several heads that are one network under several names, or that
      begin as copies of each other and never differ.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.TIE_NOT_MADE,
            Fault.TIE_BROKEN,
            Fault.TIE_COPIED,
            Fault.MEMORY_SHARED,
            Fault.NETWORKS_ARE_ONE,
            Fault.NETWORKS_STAY_EQUAL,
        }
    )

    def severity_of(self, observation: Observation) -> Severity:
        """Return INFO for what may be meant, and for what does no harm.

        Two steps of SGD come to the same as one.  A head may begin as a copy.
        """
        is_sum = observation.words.get("optimizer") == "SGD"
        may_be_meant = (
            observation.fault == Fault.TIE_COPIED and not observation.words["setting"]
        )
        may_be_meant |= observation.words.get("inputs") == "different"
        return Severity.INFO if is_sum or may_be_meant else Severity.WARNING

    def describe(self, observation: Observation) -> Description:
        """Name the weights."""
        message, advice = _TEXTS[observation.fault]
        if observation.words.get("inputs") == "different":
            message, advice = _ONE_LAYER
        words = {"model": "The model", "optimizer": "The optimizer"}
        words |= observation.words
        if words.get("setting"):
            words["setting"] = f", although the model has {words['setting']}=True"
        names = _listed(observation.names)
        places = round(observation.numbers.get("names", 0.0))
        return Description(
            message=message.format(names=names, places=places, **words),
            value=observation.numbers.get("names", len(observation.names)),
            threshold=1.0,
            advice=advice,
        )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) == 2 else join_names(names)


# The same for one layer in all places of a list, whose uses have different inputs.
_ONE_LAYER = (
    (
        "{names} are one layer: a list has the same layer in its {places} places, so "
        "all of them have the same weights, and share their gradients. The model is "
        "as deep as it looks, with the weights of one layer."
    ),
    (
        "Create each layer anew: [make() for _ in range(n)], or use "
        "copy.deepcopy(layer) for each. [layer] * n repeats one layer. If you share "
        "weights on purpose, as ALBERT does, ignore this."
    ),
)

# What is wrong, and how it should be.
_TEXTS: Mapping[Fault, tuple[str, str]] = {
    Fault.TIE_NOT_MADE: (
        (
            "{model} declares tied weights (tie_word_embeddings=True), but they are "
            "not tied: {names} are two parameters, which are trained apart. If you "
            "save and load the model, one of them replaces the other."
        ),
        (
            "Call model.tie_weights() after you replace or load one of them, and "
            "before you create the optimizer. If you want two, set "
            "config.tie_word_embeddings = False."
        ),
    ),
    Fault.TIE_BROKEN: (
        (
            "The tie of {names} is broken: they were one parameter when the hook got "
            "the model, and are several now, which are trained apart."
        ),
        (
            "Tie them again (head.weight = embedding.weight) after what has made new "
            "parameters: loading with assign=True, to_empty(), a conversion, or a new "
            "layer. Then create the optimizer."
        ),
    ),
    Fault.TIE_COPIED: (
        (
            "{names} began as copies of each other and are trained apart: a tie of an "
            "embedding and the output layer that was lost, or was never made{setting}."
        ),
        (
            "Tie the parameter itself (head.weight = embedding.weight) after what "
            "copies or loads weights, and before you create the optimizer. If you want "
            "two that begin equal, do nothing."
        ),
    ),
    Fault.MEMORY_SHARED: (
        (
            "{names} are different parameters in the same memory. {optimizer} steps "
            "each of them with its part of the gradient, so the same weights move "
            "several times in a step, by gradients that were never added."
        ),
        (
            "Tie the parameter, not its data: head.weight = embedding.weight, instead "
            "of head.weight.data = embedding.weight.data. If they should differ, copy "
            "the weights with clone()."
        ),
    ),
    Fault.NETWORKS_ARE_ONE: (
        (
            "{names} are one network under several names, and all get the same input: "
            "their outputs are always equal, so you train one network, not several."
        ),
        (
            "Create each of them anew: [make() for _ in range(n)] instead of [layer] * "
            "n, which repeats one layer. To begin with equal weights, use "
            "copy.deepcopy()."
        ),
    ),
    Fault.NETWORKS_STAY_EQUAL: (
        (
            "{names} began as copies of each other and never differ: after 5 steps, "
            "their weights have moved and are still equal, number for number. You "
            "train one network, not several."
        ),
        (
            "Initialize each of them anew instead of copying one: [make() for _ in "
            "range(n)]. Or give them different data, or different masks of dropout."
        ),
    ),
}
