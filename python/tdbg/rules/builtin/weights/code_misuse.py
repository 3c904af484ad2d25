"""CodeMisuse: lines of a program that do not do what they are written for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["CodeMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMisuse(ObservedRule):
    """Report lines of your code that do nothing, or not what they say.

    The rule finds

    - a layer, or a function that returns a new tensor, whose result is dropped;
    - a comparison where an assignment is meant, a seed that is assigned, not called,
      and a loop that returns in its first round;
    - a context such as ``torch.no_grad()`` without ``with``;
    - a method such as ``model.eval`` that is named and not called;
    - a residual that is kept and never added, and a layer's output added to itself;
    - a setting, or a mask, that no line reads;
    - a function of your own whose backward is not the derivative of its forward.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.ADDED_TO_ITSELF,
            Fault.RESULT_DROPPED,
            Fault.SETTING_UNREAD,
            Fault.WRONG_BACKWARD,
        }
    )

    def severity_of(self, observation: Observation) -> Severity:
        """Return info for an approximate backward, and for settings left over."""
        is_general = observation.words.get("kind") == "general"
        is_left = observation.fault is Fault.SETTING_UNREAD
        return Severity.INFO if is_general or is_left else Severity.WARNING

    def describe(self, observation: Observation) -> Description:
        """Say what the line does, and how it should be."""
        if observation.fault is Fault.WRONG_BACKWARD:
            message, advice = _of_backward(observation)
        elif observation.fault is Fault.SETTING_UNREAD:
            message, advice = _of_setting(observation)
        else:
            message, advice = _of_line(observation)
        more = round(observation.numbers.get("more", 0))
        if more:
            lines = "line is" if more == 1 else "lines are"
            message += f" {more} more {lines} alike."
        return Description(message=message, value=1.0, threshold=0.0, advice=advice)


def _of_statement(kind: str, where: str) -> tuple[str, str] | None:
    """Return what a statement does instead, and how it should be; None: another."""
    texts: Mapping[str, tuple[str, str]] = {
        "compared": (
            (
                "A comparison is made and dropped: {where} sets nothing, since == "
                "compares and = assigns."
            ),
            "Write one equals sign, such as parameter.requires_grad = False.",
        ),
        "seed": (
            (
                "A number takes the place of the function that sets the seed: {where} "
                "leaves the generator as it was."
            ),
            "Call the function: torch.manual_seed(0), np.random.seed(0).",
        ),
        "ended": (
            (
                "A loop ends in its first round: {where} stands inside of the loop "
                "that adds up what it returns, so all other rounds are left out."
            ),
            "Move the return behind the loop, with the indentation of `for`.",
        ),
    }
    if kind not in texts:
        return None
    message, advice = texts[kind]
    return message.format(where=where), advice


def _of_line(observation: Observation) -> tuple[str, str]:
    words = observation.words
    line = round(observation.numbers.get("line", 0))
    text, kind = words.get("text", ""), words.get("kind", "")
    where = f"`{text}` (line {line} of {words.get('file', 'its file')})"
    if observation.fault is Fault.ADDED_TO_ITSELF:
        return (
            (
                f"A layer's output is added to itself: {where} doubles `{kind}`. "
                "The input of the layer, which a residual connection adds, is lost."
            ),
            (
                f"Keep the input: {kind} = {kind} + layer({kind}). "
                f"If you mean a factor of two, write 2 * {kind}."
            ),
        )
    kind, _, name = kind.partition(" ")
    if kind == "unread":
        return (
            f"A result is never used: {where} sets `{name}`, and no line reads it.",
            (
                f"Use `{name}` where it belongs: a residual connection ends with x + "
                f"{name}. If you do not need it, remove the line."
            ),
        )
    if kind == "uncalled":
        return (
            f"A method is never called: {where} only names it, without parentheses.",
            f"Call it: {text}().",
        )
    if (known := _of_statement(kind, where)) is not None:
        return known
    if kind == "context":
        return (
            f"A context is made and dropped: {where} changes nothing without `with`.",
            f"Write `with {text}:`, and indent the lines that it is meant for.",
        )
    return (
        (
            f"A result is dropped: {where} returns a new tensor and leaves its input "
            "as it was, so the line does nothing."
        ),
        (
            f"Assign what it returns: x = {text}. Some methods have a form that works "
            "in place, with an underscore at the end, such as x.clamp_(0, 1)."
        ),
    )


def _of_setting(observation: Observation) -> tuple[str, str]:
    words = observation.words
    text, name = words.get("text", ""), words.get("kind", "")
    line = round(observation.numbers.get("line", 0))
    at = f"line {line} of {words.get('file', 'its file')}"
    message = (
        f"Your program sets `{name}` and never reads it: `{text}` ({at}). Your "
        "training is the same without this line."
    )
    if text.partition(":")[0] == name:
        message = (
            f"Your program ignores an argument: a function takes `{name}` ({at}), and "
            "no line in it uses it. What you pass has no effect."
        )
    return message, (
        f"Use `{name}` where you mean it, for example as an argument of your loss, "
        "optimizer or layer. If it is left over, remove it."
    )


def _of_backward(observation: Observation) -> tuple[str, str]:
    name = next(iter(observation.names), "Function")
    numbers = observation.numbers
    got, slope, at = (number(numbers.get(key, 0)) for key in ("got", "slope", "at"))
    kind = observation.words.get("kind", "")
    advice = (
        f"Correct {name}.backward, and compare it in a test: "
        f"torch.autograd.gradcheck({name}.apply, inputs) with inputs in float64."
    )
    if kind == "ignored":
        return (
            (
                f"The backward of {name} ignores the gradient that it gets: it returns "
                "the same whatever comes from the layers behind, so the layers before "
                "learn nothing from the loss."
            ),
            "Multiply by it: return grad_output * slope. " + advice,
        )
    if kind == "elements":
        return (
            (
                f"The backward of {name} is not the derivative of its forward: at "
                f"{at}, the forward has a slope of {slope}, and the backward returns "
                f"{got}. All layers before {name} learn from wrong gradients."
            ),
            advice,
        )
    if kind == "factor":
        return (
            (
                f"The backward of {name} returns {got} times the derivative of its "
                "forward, in all directions that were compared."
            ),
            advice,
        )
    return (
        (
            f"The backward of {name} is not the derivative of its forward, by finite "
            "differences. An approximation may be meant."
        ),
        advice,
    )
