"""CodeMisuse: lines of a program that do not do what they are written for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    - a function of your own whose backward is not the derivative of its forward;
    - two layers with nothing between that compute what one could, and a dropout that
      takes the share to keep for the one to drop;
    - an attention that does not scale its scores, or that cannot tell places apart.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.ADDED_TO_ITSELF,
            Fault.KEPT_AS_DROPPED,
            Fault.LAYERS_IN_A_ROW,
            Fault.PLACES_UNKNOWN,
            Fault.RESULT_DROPPED,
            Fault.SCORES_UNSCALED,
            Fault.SETTING_UNREAD,
            Fault.WRONG_BACKWARD,
        }
    )

    def severity_of(self, observation: Observation) -> Severity:
        """Return info for what may be meant: an approximation, a layer, a setting."""
        kind = observation.words.get("kind")
        may_be_meant = kind == "general" or observation.fault in {
            Fault.LAYERS_IN_A_ROW,
            Fault.SCORES_UNSCALED,
            Fault.SETTING_UNREAD,
        }
        if observation.fault in {Fault.KEPT_AS_DROPPED, Fault.PLACES_UNKNOWN}:
            may_be_meant = not (kind or observation.words.get("name"))
        return Severity.INFO if may_be_meant else Severity.WARNING

    def describe(self, observation: Observation) -> Description:
        """Say what the line does, and how it should be."""
        if observation.fault is Fault.WRONG_BACKWARD:
            message, advice = _of_backward(observation)
        elif observation.fault in _OF_LAYERS:
            message, advice = _OF_LAYERS[observation.fault](observation)
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


# ---- layers --------------------------------------------------------------------------


def _of_row(observation: Observation) -> tuple[str, str]:
    words, numbers = observation.words, observation.numbers
    sizes = (round(numbers.get(key, 0)) for key in ("given", "middle", "out"))
    of = "convolution" if words.get("kind") == "convolution" else "linear layer"
    return (
        (
            f"Two {of}s follow each other with nothing between: {words.get('first')} "
            f"and {words.get('second')}, of {' to '.join(map(str, sizes))} features. "
            f"One {of} could compute the same, so the second one adds nothing."
        ),
        (
            "Put an activation between them, such as ReLU(). If you call one "
            "in forward, check that its result goes on. If you mean no activation, one "
            "layer does."
        ),
    )


def _of_scores(observation: Observation) -> tuple[str, str]:
    features, deviation, peak = (
        observation.numbers.get(key, 0) for key in ("features", "deviation", "peak")
    )
    root = number(features**0.5)
    return (
        (
            "An attention does not divide its scores by the root of the number of "
            f"features: queries have {round(features)}, scores have a standard "
            f"deviation of {number(deviation)}, and the largest weight of a query is "
            f"{number(peak)} on average. Where weights are near 0 and 1, queries and "
            "keys hardly learn."
        ),
        (
            f"Divide by {root}: scores = query @ key.transpose(-2, -1) / "
            "math.sqrt(query.shape[-1]). Or call scaled_dot_product_attention, which "
            "does that."
        ),
    )


def _of_places(observation: Observation) -> tuple[str, str]:
    who = next(iter(observation.names), "Your model")
    name = observation.words.get("name", "")
    message = (
        f"{who} does not see the order of its tokens: with the tokens of each sample "
        "in another order, it answers the same. Attention alone knows no places."
    )
    if name:
        message += f" The model has `{name}`, and it tells no place from another."
    return message, (
        "Add an embedding of the places to that of the tokens: x = self.tokens(ids) + "
        "self.places(arange(ids.shape[1], device=ids.device)). If the order "
        "means nothing in your task, all is well."
    )


def _of_dropout(observation: Observation) -> tuple[str, str]:
    words = observation.words
    where = f"`{words.get('text', '')}`"
    share = number(observation.numbers.get("p", 0))
    message = (
        f"A dropout sets {share} of its inputs to zero in training: {where}. In "
        "PyTorch, p is the share to drop, not the one to keep."
    )
    if name := words.get("kind", ""):
        line = round(observation.numbers.get("line", 0))
        at = f"line {line} of {words.get('file', 'its file')}"
        message = (
            f"A dropout drops what `{name}` says is to be kept: {where} ({at}). "
            "In PyTorch, p is the share to drop."
        )
    return message, "Pass the share to drop: nn.Dropout(1 - keep), such as 0.1."


_OF_LAYERS: Mapping[Fault, Callable[[Observation], tuple[str, str]]] = {
    Fault.KEPT_AS_DROPPED: _of_dropout,
    Fault.LAYERS_IN_A_ROW: _of_row,
    Fault.PLACES_UNKNOWN: _of_places,
    Fault.SCORES_UNSCALED: _of_scores,
    Fault.SETTING_UNREAD: _of_setting,
}
