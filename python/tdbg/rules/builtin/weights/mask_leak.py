"""MaskLeak: models of sequences that see what a mask must hide."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.rules.builtin.probed_rule import ProbedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["MaskLeak"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MaskLeak(ProbedRule):
    """Report models that see later tokens, which are their labels, or padding."""

    severities = (Severity.INFO, Severity.WARNING, Severity.ERROR)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.LATER_IS_SEEN,
            Fault.PADDING_IS_SEEN,
            Fault.MASK_INVERTED,
            Fault.MASK_ADDED,
            Fault.MASK_DROPPED,
            Fault.MEMORY_PADDING_SEEN,
        }
    )
    question = "masks"
    explained_by = frozenset({Fault.ATTENTION_OVER_QUERIES})

    def severity_of(self, observation: Observation) -> Severity:
        """Return an error for masks without effect; else how much padding matters."""
        if observation.fault not in {Fault.PADDING_IS_SEEN, Fault.MEMORY_PADDING_SEEN}:
            return Severity.ERROR
        varies = observation.numbers.get("widths", 1.0) > 1
        is_sure = varies or "mask" in observation.words
        return Severity.WARNING if is_sure else Severity.INFO

    def describe(self, observation: Observation) -> Description:
        """Say what is seen."""
        change = observation.numbers.get("change", 0.0)
        name = observation.names[0]
        if observation.fault is Fault.PADDING_IS_SEEN:
            message, advice = _of_padding(name, observation)
        elif observation.fault is not Fault.LATER_IS_SEEN:
            message, advice = _of_mask(name, observation)
        elif observation.words.get("earlier") == "unseen":
            message, advice = _of_inverted_mask(name, change)
        else:
            message, advice = _of_later_tokens(name, change)
        return Description(message=message, value=change, threshold=0.0, advice=advice)


def _of_later_tokens(name: str, change: float) -> tuple[str, str]:
    message = (
        f"{name} is to guess the next token, and sees it: it is not causal. A later "
        f"token changes its outputs at earlier places by up to {change:.2g} standard "
        "deviations, and the labels are the inputs, shifted by one."
    )
    advice = (
        "Give attention a causal mask (is_causal=True, or a lower triangle), and take "
        "the softmax over the keys (dim=-1). Recurrent layers must not be "
        "bidirectional, and convolutions must be padded on the left only."
    )
    return message, advice


def _of_inverted_mask(name: str, change: float) -> tuple[str, str]:
    message = (
        f"{name} is to guess the next token, and sees later tokens only: its causal "
        f"mask is upside down. A later token changes its outputs at earlier places by "
        f"up to {change:.2g} standard deviations; the first token changes none."
    )
    advice = (
        "Invert the mask. For scaled_dot_product_attention, True means that a place is "
        "seen; for nn.MultiheadAttention, that it is not. is_causal=True needs no mask."
    )
    return message, advice


def _of_padding(name: str, observation: Observation) -> tuple[str, str]:
    numbers = observation.numbers
    message = (
        f"Padding changes what {name} answers: with less padding behind, its outputs "
        f"differ by up to {numbers.get('change', 0.0):.2g} standard deviations. "
    )
    if "other" in numbers:
        width, other = round(numbers.get("width", 0.0)), round(numbers["other"])
        message += f"Batches are padded to {width} places, and a later one to {other}."
    else:
        message += "How much a sample gets depends on its batch neighbours."
    if mask := observation.words.get("mask"):
        message += f" The program has a mask of padding ({mask}), and does not pass it."
    advice = (
        "Pass a padding mask (attention_mask, src_key_padding_mask), and leave padding "
        "out of means and maxima; pack sequences for recurrent layers "
        "(pack_padded_sequence)."
    )
    return message, advice


def _of_mask(name: str, observation: Observation) -> tuple[str, str]:
    what = observation.words.get("kind", "")
    if observation.fault is Fault.MASK_INVERTED:
        seen = "padding only" if what == "padding" else "later places only"
        message = f"The {what} mask of {name} is upside down: attention sees {seen}."
        return message, (
            "Invert the mask (~mask). For scaled_dot_product_attention, True means "
            "that a place is seen; for nn.MultiheadAttention, that it is not."
        )
    if observation.fault is Fault.MASK_ADDED:
        message = (
            f"The {what} mask of {name} masks nothing: it has floating-point ones and "
            "zeros, and attention adds these to its scores."
        )
        return message, (
            "Pass a boolean mask (mask.bool(), whose meaning depends on the function), "
            "or a float mask with 0 where a place is seen, and -inf elsewhere."
        )
    if observation.fault is Fault.MASK_DROPPED:
        message = (
            f"{name} passes a mask and is_causal=True to nn.MultiheadAttention, which "
            "then ignores the mask, and it is not the causal one."
        )
        return message, "Leave out is_causal, and put both into one mask."
    message = (
        f"The decoder of {name} attends to padding: its encoder masks the padding, "
        "and attention from the decoder to the encoder's outputs gets no such mask."
    )
    return message, (
        "Pass the encoder's padding mask there, too: memory_key_padding_mask="
        "src_key_padding_mask in nn.Transformer."
    )
