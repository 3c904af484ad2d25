"""LossTermMisuse: terms of a loss that do not do what their form says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number
from tdbg.rules.builtin.loss.episode_texts import OF_EPISODES
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.registry import register
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.observations import Fault, Observation

__all__ = ["LossTermMisuse"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossTermMisuse(ObservedRule):
    """Report terms of a loss with a wrong sign or form.

    The rule finds

    - an entropy bonus of a policy that is added to the loss;
    - a ratio of probabilities that is one although the policy has changed;
    - a policy loss that makes good choices unlikely, or whose clipping limits nothing,
      or not the ratio;
    - values that learn what they say themselves, or what comes after an episode;
    - returns that contain the past, and advantages that see no next value;
    - steps of an agent in which nothing happens, or all of one observation;
    - the largest value of a state in the place of that of the action;
    - the weight of a focal loss that is computed from the mean over the batch;
    - noise that is multiplied by a variance, or by its logarithm;
    - weights of classes that are the larger, the more labels a class has;
    - a divergence from a normal distribution that the training makes large;
    - a divergence that is added up over the samples where the rest is a mean;
    - data and noise that are mixed by a variance instead of its root;
    - a loss of the last sample in a batch instead of all;
    - risks that add up along samples that are not sorted by time;
    - a target or an advantage that has a gradient, and a term that has none;
    - pairs of a contrastive loss that are one sample, or that nobody means;
    - chances of other actions than those taken, or of numbers before a tanh;
    - rollouts that nobody clears, and returns of standardized advantages;
    - the larger one of two critics, or a target network that chooses actions;
    - similarities of unit vectors that a softmax cannot tell apart;
    - errors that are cut off, and noise that is uniform where it should be normal;
    - a generator that makes its samples easy to tell from real ones.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP
    faults = frozenset(
        {
            Fault.ENTROPY_PENALIZED,
            Fault.RATIO_ALWAYS_ONE,
            Fault.POLICY_REVERSED,
            Fault.CLIPPED_FOR_NOTHING,
            Fault.ACTOR_REVERSED,
            Fault.RATIO_OF_LOGARITHMS,
            Fault.RATIO_CLIPPED_ASIDE,
            Fault.VALUES_LEARN_THEMSELVES,
            Fault.TARGET_PAST_END,
            Fault.ENDS_INVERTED,
            Fault.SUM_PAST_END,
            Fault.RETURNS_OF_PAST,
            Fault.RETURNS_REVERSED,
            Fault.NOTHING_HAPPENS,
            Fault.OBSERVATION_KEPT_ONCE,
            Fault.LARGEST_VALUE_LEARNS,
            Fault.SUM_OF_PRESENT,
            Fault.FOCAL_OF_MEAN,
            Fault.VARIANCE_AS_DEVIATION,
            Fault.WEIGHTS_NAME_NO_CLASS,
            Fault.WEIGHTS_UPSIDE_DOWN,
            Fault.DIVERGENCE_MAXIMIZED,
            Fault.REDUCTIONS_DIFFER,
            Fault.RISKS_UNSORTED,
            Fault.SHARE_WITHOUT_ROOT,
            Fault.ONE_SAMPLE_COUNTS,
            Fault.TARGET_LEARNS,
            Fault.ADVANTAGE_LEARNS,
            Fault.TERM_HAS_NO_GRADIENT,
            Fault.OWN_VIEW_COUNTS,
            Fault.ONE_MATCHES_ALL,
            Fault.VIEWS_ARE_ONE,
            Fault.NOISE_IS_UNIFORM,
            Fault.ERROR_CUT_OFF,
            Fault.SIMILARITIES_CLOSE,
            Fault.DENSITY_BEFORE_LIMIT,
            Fault.OTHER_ACTIONS_WEIGHED,
            Fault.ROLLOUTS_KEPT,
            Fault.RETURNS_OF_STANDARDIZED,
            Fault.LARGER_OF_CRITICS,
            Fault.ROLES_EXCHANGED,
            Fault.NEVER_ALL_NOISE,
            Fault.ONE_LEVEL_OF_NOISE,
            Fault.GENERATOR_HELPS,
        }
    )
    hooks = frozenset({"Keras", "PyTorch"})

    def severity_of(self, observation: Observation) -> Severity:
        """Return a warning, unless you may mean similarities or levels of noise."""
        is_meant = observation.fault is Fault.SIMILARITIES_CLOSE and (
            observation.numbers.get("scale", 1.0) == 1.0
        )
        is_meant |= observation.fault in _OF_LEVELS
        return Severity.INFO if is_meant else Severity.WARNING

    def describe(self, observation: Observation) -> Description:
        """Say what the term does instead, and how it should be."""
        if observation.fault is Fault.WEIGHTS_NAME_NO_CLASS:
            message, advice = _of_keys(observation.words)
        elif observation.fault is Fault.ERROR_CUT_OFF:
            message, advice = _of_cut(observation.numbers, observation.words)
        elif observation.fault is Fault.REDUCTIONS_DIFFER:
            message, advice = _of_reductions(observation)
        elif observation.words.get("of") == "mixture":
            message, advice = _of_uniform_mixture()
        elif observation.fault in _OF_NUMBERS:
            message, advice = _OF_NUMBERS[observation.fault](observation.numbers)
        elif observation.fault in _OF_NAMES:
            message, advice = _OF_NAMES[observation.fault](observation.words)
        elif observation.words.get("kind") == "slope":
            message, advice = _of_slope()
        elif observation.fault in _OF_GRADIENTS:
            message, advice = _OF_GRADIENTS[observation.fault]()
        else:
            message, advice = _TEXTS[observation.fault]
        return Description(message=message, value=1.0, threshold=0.0, advice=advice)


# What is wrong, and how it should be.
_TEXTS: Mapping[Fault, tuple[str, str]] = {
    Fault.ENTROPY_PENALIZED: (
        (
            "The entropy bonus has the wrong sign: the loss adds the entropy of the "
            "policy, so the training makes the policy certain instead of letting it "
            "explore."
        ),
        (
            "Subtract the entropy: loss = policy_loss - coefficient * entropy.mean(), "
            "with a coefficient above 0."
        ),
    ),
    Fault.RATIO_ALWAYS_ONE: (
        (
            "The ratio of the new to the old policy is always exactly 1: the program "
            "uses the same samples again after an update, but computes the old "
            "log-probabilities anew, with the new policy. Nothing is ever clipped."
        ),
        (
            "Compute the old log-probabilities once, without a gradient, when you "
            "sample the actions, and keep them for all updates: ratio = exp(new - old)."
        ),
    ),
    Fault.CLIPPED_FOR_NOTHING: (
        (
            "The clipped loss of the policy takes the wrong one of its two parts: the "
            "part that makes the loss smaller. So clipping limits nothing, and the "
            "policy may go as far as it likes in one update."
        ),
        (
            "Take the worse part: loss = -min(ratio * advantage, clip(ratio, 1 - eps, 1"
            " + eps) * advantage).mean(), element by element, or max of both parts if "
            "you negate them first."
        ),
    ),
    Fault.ACTOR_REVERSED: (
        (
            "The loss of the actor has the wrong sign: it rises with the value that the"
            " critic gives to the actor's action, and the critic learns values that "
            "rise with the reward. So the actor learns the worst actions."
        ),
        (
            "Put a minus in front: actor_loss = -critic(states, actor(states)).mean(). "
            "If the actor is an adversary, drop this rule."
        ),
    ),
    Fault.RATIO_OF_LOGARITHMS: (
        (
            "What the loss of the policy clips is no ratio of probabilities: it divides"
            " or subtracts their logarithms, without exp, so its limits around 1 mean "
            "nothing."
        ),
        "Take the exponential of the difference: ratio = exp(new - old).",
    ),
    Fault.VALUES_LEARN_THEMSELVES: (
        (
            "The values learn what they say themselves: whenever new samples come, the"
            " error of the values is exactly 0, so the returns in the loss are the "
            "values that the network gave for these samples. No reward reaches it."
        ),
        (
            "Compare the values with returns: value_loss = ((new_values - returns) ** "
            "2).mean(), where returns = advantages + old_values."
        ),
    ),
    Fault.FOCAL_OF_MEAN: (
        (
            "The focal loss has one weight for the whole batch: the program computes "
            "(1 - p) ** gamma from the mean of the losses, not from the loss of each "
            "sample, so easy samples weigh as much as hard ones."
        ),
        (
            'Compute the loss of each sample (reduction="none"), multiply each by its '
            "own weight, and then take the mean."
        ),
    ),
    Fault.VARIANCE_AS_DEVIATION: (
        (
            "The sampling multiplies noise by a variance or its logarithm, where a "
            "standard deviation belongs: the divergence in the loss takes the "
            "exponential of the same numbers as the variance."
        ),
        "Take the standard deviation: z = mean + exp(0.5 * log_variance) * noise.",
    ),
    Fault.NOISE_IS_UNIFORM: (
        (
            "The noise of the sampling is uniform, between 0 and 1: the program has "
            "drawn it with rand, and the divergence in the loss is that from a normal "
            "distribution. So all codes lie above their mean, and samples from a "
            "normal distribution, which you draw later, are others than you train on."
        ),
        "Draw normal noise: z = mean + (0.5 * log_variance).exp() * randn_like(mean).",
    ),
    Fault.GENERATOR_HELPS: (
        (
            "The generator learns what the discriminator learns: both move the scores "
            "of generated samples in the same direction, away from those of real ones."
            " So the generator makes its samples easy to tell from real ones."
        ),
        (
            "Give the generator the labels of real samples: g_loss = criterion(D(fake),"
            " ones). For a Wasserstein loss, g_loss = -D(fake).mean() where the "
            "discriminator has D(fake).mean() - D(real).mean()."
        ),
    ),
    Fault.OWN_VIEW_COUNTS: (
        (
            "The contrastive loss pushes each sample away from itself: nobody has "
            "masked the diagonal of the similarity matrix. So each view is its own "
            "strongest negative, and the others count for less."
        ),
        (
            "Mask the diagonal before the softmax: scores - 1e9 * eye(n), where n is "
            "the number of rows. Or leave it out of the sum below the fraction."
        ),
    ),
    Fault.VIEWS_ARE_ONE: (
        (
            "The views of each pair are the same: what the contrastive loss is to bring"
            " together is equal to the last bits, at each step. So the model learns "
            "nothing about what views have in common."
        ),
        (
            "Augment twice: call the transform once for each view. If dropout is to "
            "make the two views, call the model twice in training mode."
        ),
    ),
    Fault.DIVERGENCE_MAXIMIZED: (
        (
            "The divergence in the loss has the wrong sign: the loss subtracts the "
            "divergence from the standard normal distribution, so the training makes "
            "it as large as it can."
        ),
        (
            "Add it: loss = reconstruction + divergence.mean(), where divergence = "
            "-0.5 * (1 + log_variance - mean ** 2 - log_variance.exp()).sum(1)."
        ),
    ),
}


def _of_bounds(numbers: Mapping[str, float]) -> tuple[str, str]:
    least, most = (number(numbers.get(each, 0.0)) for each in ("least", "most"))
    return (
        (
            f"The loss of the policy clips the ratio of probabilities to {least} to "
            f"{most}, which leaves out 1, where the ratio begins. So the clipped part "
            "is a constant, and the policy learns from some of its choices only."
        ),
        "Clip around 1: clip(ratio, 1 - eps, 1 + eps), not clip(ratio, -eps, eps).",
    )


def _of_similarities(numbers: Mapping[str, float]) -> tuple[str, str]:
    scale, least = (numbers.get(each, 1.0) for each in ("scale", "least"))
    n = max(2, round(numbers.get("classes", 2.0)))
    if scale == 1:
        made = "nothing multiplies them or divides them by a temperature"
    else:
        made = (
            f"the program multiplies them by {number(scale)}, perhaps by the "
            "temperature instead of dividing"
        )
    return (
        (
            f"The softmax is given similarities of unit vectors, and {made}. Logits "
            f"from {number(-scale)} to {number(scale)} are so close that the loss over "
            f"{n:,} classes cannot fall below {least:.3g}; chance is "
            f"{math.log(n):.3g}."
        ),
        "Divide by the temperature: logits = similarities / 0.1, or a learned scale.",
    )


def _of_cut(numbers: Mapping[str, float], words: Mapping[str, str]) -> tuple[str, str]:
    limit, share = (numbers.get(each, 0.0) for each in ("limit", "share"))
    if words.get("of") == "outputs":
        bounds = [
            number(numbers[each]) for each in ("least", "most") if each in numbers
        ]
        return (
            (
                f"Your model's outputs are clamped ({' to '.join(bounds)}) before the "
                f"loss. In one batch, {share:.0%} of them lie beyond and are wrong by "
                "more than a tenth of the range of the targets. They have no gradient, "
                "so they teach the model nothing."
            ),
            (
                "Clamp in evaluation only. In training, let the loss see the outputs "
                "as they are, or end the model in a sigmoid or tanh."
            ),
        )
    return (
        (
            "The loss cuts errors off before it squares them: beyond "
            f"{number(limit)}, they have no gradient. In one batch, that is so for "
            f"{share:.0%} of the samples, which teach the model nothing, though their "
            "errors are the largest."
        ),
        (
            "Limit the gradient instead of the error: smooth_l1_loss, or huber_loss "
            f"with delta={number(limit)}."
        ),
    )


def _of_reductions(observation: Observation) -> tuple[str, str]:
    n = int(observation.numbers.get("samples", 0.0))
    is_mean = observation.words.get("kind") == "mean"
    one, other = ("a mean", "the sum") if is_mean else ("the sum", "a mean")
    effect = "too small" if is_mean else "too large"
    times = round(observation.numbers.get("times", n))
    return (
        (
            f"The divergence in the loss is {one} over the {n:,} samples of a batch, "
            f"and the rest of the loss is {other}. So the divergence weighs about "
            f"{times:,} times {effect}, and its weight depends on the batch size."
        ),
        (
            "Reduce both alike: add up over the features and take the mean over the "
            "samples, reconstruction.flatten(1).sum(1).mean() + divergence.sum(1)"
            '.mean(). Or use reduction="sum" for both and divide by the batch size.'
        ),
    )


def _of_root(words: Mapping[str, str]) -> tuple[str, str]:
    one = words.get("of", "noise")
    other = "data" if one == "noise" else "noise"
    return (
        (
            f"The samples are mixed with noise by the wrong shares: that of the {one} "
            f"is a variance, and that of the {other} the root of the other variance. "
            "So the mixture has another variance at each step than the sampling "
            "assumes."
        ),
        (
            "Take both roots: noisy = alpha_bar.sqrt() * x + (1 - alpha_bar).sqrt() * "
            "noise."
        ),
    )


def _of_last(words: Mapping[str, str]) -> tuple[str, str]:
    n = words.get("samples", "all")
    return (
        (
            f"Only the last of the {n} samples in a batch counts: the loss is that of "
            "one sample, though the model answers for all and all have labels. A loop "
            "over the samples probably replaces the loss each time."
        ),
        (
            "Give the loss the whole batch: criterion(outputs, labels). Or add up in "
            "the loop: loss = loss + criterion(output, label) / len(labels)."
        ),
    )


def _of_risks(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "time")
    return (
        (
            "The loss adds up the risks of all samples before each one in its batch, "
            f"but `{name}` is not sorted there. So each sample is compared with "
            "others at random, not with those that live longer."
        ),
        (
            f"Sort first: order = {name}.argsort(descending=True), then take "
            "risk[order] and event[order]."
        ),
    )


def _of_keys(words: Mapping[str, str]) -> tuple[str, str]:
    return (
        (
            "The class weights do not fit the labels: they have keys that no label has "
            f"({words.get('keys', '?')}), and none for some labels "
            f"({words.get('classes', '?')}). Keys without labels do nothing, and "
            "classes without a key weigh 1."
        ),
        (
            "Use the labels as keys, as whole numbers: class_weight = {0: 1.0, 1: 5.0}."
            ' A text such as "0" is no label, and labels may begin at 1.'
        ),
    )


def _of_weights(numbers: Mapping[str, float]) -> tuple[str, str]:
    often, rare, labels, many, few = (
        f"{int(numbers[key]):,}"
        for key in ("often", "rare", "labels", "often_labels", "rare_labels")
    )
    larger, smaller = numbers["often_weight"], numbers["rare_weight"]
    return (
        (
            f"The class weights of the loss are upside down: class {often}, with "
            f"{many} of {labels} labels, weighs {number(larger)}, and class {rare}, "
            f"with {few}, weighs {number(smaller)}. So the loss counts rare classes "
            "even less than without weights."
        ),
        (
            "Divide by the number of labels: weight = counts.sum() / (len(counts) * "
            "counts), and pos_weight = negatives / positives. If frequent classes are "
            "to count more, drop this rule."
        ),
    )


def _of_match(numbers: Mapping[str, float]) -> tuple[str, str]:
    n, match = (int(numbers.get(key, 0.0)) for key in ("samples", "match"))
    return (
        (
            f"The pairs of the contrastive loss are wrong: all {n:,} samples of each "
            f"batch have the same match, sample {match}. So the model learns to make "
            "all samples alike."
        ),
        (
            "Give each sample its own match as the label: arange(n) if row i of one "
            "view belongs to row i of the other, or (arange(2 * n) + n) % (2 * n) if "
            "both views stand in one matrix. Labels that are zeros are right only if "
            "the score of the positive stands first in each row."
        ),
    )


def _of_reversed(words: Mapping[str, str]) -> tuple[str, str]:
    by = words.get("by", "")
    is_by_values = by == "values"
    seen = (
        "the target of the values minus the values, in the same loss"
        if is_by_values
        else f"`{by}`"
    )
    return (
        (
            "The policy loss has the wrong sign: it rises with the probability of "
            f"good choices. The sign of each choice's weight is that of {seen}, so the"
            " training makes the best choices the least likely."
        ),
        (
            "Put a minus in front: policy_loss = -(log_prob * advantage).mean(), with "
            "advantage = returns - values. If you maximize the loss elsewhere, or the "
            "numbers are costs, drop this rule."
        ),
    )


def _of_target() -> tuple[str, str]:
    return (
        (
            "The target in the loss has a gradient: the program adds rewards to the "
            "discounted values of the same network and does not detach them. The "
            "training moves the target toward the prediction, too."
        ),
        (
            "Compute the target under torch.no_grad(), or detach it: target = reward +"
            " gamma * next_value.detach(). If you want residual gradients, drop this "
            "rule."
        ),
    )


def _of_advantage() -> tuple[str, str]:
    return (
        (
            "The advantage in the policy loss has a gradient: the loss multiplies log-"
            "probabilities by the output of another network, so the policy loss trains"
            " this network, too, and spoils its values."
        ),
        "Detach it: policy_loss = -(log_prob * advantage.detach()).mean().",
    )


def _of_number() -> tuple[str, str]:
    return (
        (
            "A term of the loss has no gradient: the loss contains a number that "
            "changes from step to step, but depends on no parameter, so the training "
            "ignores this term."
        ),
        (
            "Keep the graph of each term: no .item(), .data, .detach() or "
            "torch.tensor() on it, and no torch.no_grad() around it. If you only "
            "report this number, do not add it to the loss."
        ),
    )


def _of_slope() -> tuple[str, str]:
    return (
        (
            "The gradient penalty has no gradient: the program computes a gradient of "
            "its inputs without create_graph=True, and the loss contains a number that"
            " depends on no parameter. The training ignores this term."
        ),
        (
            "Keep the graph of the gradient: torch.autograd.grad(scores.sum(), inputs,"
            " create_graph=True)."
        ),
    )


def _of_uniform_mixture() -> tuple[str, str]:
    return (
        (
            "The noise that your model learns to find is uniform, between 0 and 1: the "
            "program has drawn it with rand. Sampling begins with normal noise, which "
            "your model never sees."
        ),
        "Draw normal noise: noise = randn_like(x).",
    )


def _of_most_noise(numbers: Mapping[str, float]) -> tuple[str, str]:
    most, n = numbers.get("most", 0.0), round(numbers.get("samples", 0))
    return (
        (
            f"No sample is ever mostly noise: in {n} samples, the largest share of "
            f"noise is {number(most)}, and the data have the rest. Sampling begins with"
            " nothing but noise, and your model never learns what to do there."
        ),
        (
            "Take the product of all steps, alpha_bar = cumprod(1 - betas, 0), "
            "not 1 - betas of one. Draw steps from all: randint(0, T, (len(x),))."
        ),
    )


def _of_one_level(numbers: Mapping[str, float]) -> tuple[str, str]:
    n = round(numbers.get("batches", 0))
    return (
        (
            f"All samples of a batch have the same level of noise, in {n} batches: the "
            "program draws one step for all of them. Gradients of one batch then pull "
            "in the direction of one level, and training is slower and less steady."
        ),
        "Draw a step for each sample: t = randint(0, T, (len(x),)).",
    )


_OF_LEVELS: Mapping[Fault, Callable[[Mapping[str, float]], tuple[str, str]]] = {
    Fault.NEVER_ALL_NOISE: _of_most_noise,
    Fault.ONE_LEVEL_OF_NOISE: _of_one_level,
}
_OF_NUMBERS: Mapping[Fault, Callable[[Mapping[str, float]], tuple[str, str]]] = {
    Fault.WEIGHTS_UPSIDE_DOWN: _of_weights,
    Fault.RATIO_CLIPPED_ASIDE: _of_bounds,
    Fault.SIMILARITIES_CLOSE: _of_similarities,
    Fault.ONE_MATCHES_ALL: _of_match,
    **_OF_LEVELS,
}
_OF_NAMES: Mapping[Fault, Callable[[Mapping[str, str]], tuple[str, str]]] = {
    **OF_EPISODES,
    Fault.POLICY_REVERSED: _of_reversed,
    Fault.RISKS_UNSORTED: _of_risks,
    Fault.ONE_SAMPLE_COUNTS: _of_last,
    Fault.SHARE_WITHOUT_ROOT: _of_root,
}
_OF_GRADIENTS: Mapping[Fault, Callable[[], tuple[str, str]]] = {
    Fault.TARGET_LEARNS: _of_target,
    Fault.ADVANTAGE_LEARNS: _of_advantage,
    Fault.TERM_HAS_NO_GRADIENT: _of_number,
}
