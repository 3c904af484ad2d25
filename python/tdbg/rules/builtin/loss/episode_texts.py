"""The texts about episodes, steps and actions of agents.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tdbg.run.observations import Fault

__all__ = ["OF_EPISODES", "chances_as_scores"]


def chances_as_scores(shapes: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Say what a distribution makes of probabilities that it takes for scores."""
    n = shapes[0][-1] if shapes and shapes[0] else 2
    most = math.e / (math.e + n - 1)
    return (
        (
            f"Categorical gets the result of a softmax over {n} choices as its logits, "
            "and applies a softmax once more. However sure your model is, no choice "
            f"gets a probability above {most:.2f}."
        ),
        (
            "Name the argument: Categorical(probs=probabilities). Or give it the "
            "scores from before the softmax: Categorical(logits=scores)."
        ),
    )


def _of_past_end(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "done")
    return (
        (
            "The target of the values goes on past the end of an episode: it is the "
            f"reward plus the discounted next value, even where `{name}` says that the"
            " episode ends there. So the values learn of a future that never comes."
        ),
        (
            "Leave the next value out where an episode has ended: target = reward + "
            "gamma * next_value * (1 - done). If every end is only a time limit, the "
            "next value is right: drop this rule."
        ),
    )


def _of_inverted(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "done")
    return (
        (
            "The ends of episodes count the wrong way round: the target has the next "
            f"value only where `{name}` says that an episode ends, and is the reward "
            "alone everywhere else. So no value looks beyond one step."
        ),
        (
            "Multiply by the opposite: target = reward + gamma * next_value * (1 - "
            "done). A mask that is 1 where an episode goes on needs no 1 - mask."
        ),
    )


def _of_sum(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "advantages")
    return (
        (
            f"`{name}` go on past the end of an episode: where one ends, the sum "
            "contains rewards and values of the next one, which the choices before do "
            "not change."
        ),
        (
            "Begin anew at each end: advantage = delta + gamma * lambda * (1 - done) * "
            "advantage, with delta = reward + gamma * next_value * (1 - done) - value."
            " If every end is only a time limit, drop this rule."
        ),
    )


def _of_past(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "returns")
    return (
        (
            f"`{name}` contain the past: each return is the sum of the rewards up to "
            "its step, discounted from the beginning of the episode, not of those that"
            " follow. What a choice leads to does not count."
        ),
        (
            "Add up from the end: for reward in reversed(rewards): total = reward + "
            "gamma * total, and reverse the list of totals."
        ),
    )


def _of_order(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "returns")
    return (
        (
            f"`{name}` are the wrong way round: they stand in the order in which they "
            "were added up, from the end, while the log-probabilities stand in that of "
            "the steps. So the first choice gets the return of the last one."
        ),
        (
            f"Reverse the list: {name}.reverse(), or {name}.insert(0, total) in the "
            "loop."
        ),
    )


def _of_nothing(words: Mapping[str, str]) -> tuple[str, str]:
    name, later = words.get("name", "obs"), words.get("later", "next_obs")
    return (
        (
            f"`{name}` and `{later}` are equal in all samples of each batch: nothing "
            "happens in any step. So the values learn what staying in a state is "
            "worth, not what an action leads to."
        ),
        (
            f"Keep what was before the step: put ({name}, action, reward, {later}) "
            f"into the buffer before you set {name} = {later}."
        ),
    )


def _of_one_observation(words: Mapping[str, str]) -> tuple[str, str]:
    name, later = words.get("name", "obs"), words.get("later", "next_obs")
    return (
        (
            f"`{name}` and `{later}` are one observation in all samples of each batch, "
            "although the rewards differ: the buffer keeps references to one array, "
            "which the environment changes in place."
        ),
        (
            "Copy what you put into the buffer: obs.copy() of an array, obs.clone() of "
            "a tensor."
        ),
    )


def _of_largest(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "actions")
    return (
        (
            "The loss trains the largest value of each state, not the value of the "
            f"action that was taken: `{name}` are other actions in some samples, and "
            "their rewards are credited to the best one."
        ),
        (
            f"Choose the values by the actions: values.gather(1, {name}.unsqueeze(1))"
            ".squeeze(1), not values.max(1).values. The maximum belongs in the "
            "target."
        ),
    )


def _of_no_next(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "advantages")
    return (
        (
            f"`{name}` have the value of the state itself where that of the next one "
            "belongs: each error is reward + gamma * value - value, of the same state. "
            "So they do not know what an action leads to."
        ),
        (
            "Take the next value: delta[t] = reward[t] + gamma * value[t + 1] * (1 - "
            "done[t]) - value[t]."
        ),
    )


def _of_density(words: Mapping[str, str]) -> tuple[str, str]:
    advice = (
        "Subtract log(1 - action ** 2 + 1e-6) from the logarithm, for each number of "
        "the action, where action = tanh(number); then add up over the action."
    )
    if words.get("kind") == "twice":
        return (
            (
                "The density of an action is corrected for a second tanh: the loss "
                "takes log(1 - tanh(action) ** 2), and the action is a tanh already."
            ),
            advice,
        )
    return (
        (
            "The density of an action is that of the number before its tanh: the loss "
            "has the logarithm of the normal density, and nothing for how the tanh "
            "stretches it. So the entropy that the policy keeps is not that of its "
            "actions, and they go to their limits."
        ),
        advice,
    )


def _of_other(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "actions")
    return (
        (
            f"The loss weighs the chances of other actions than `{name}`: the policy "
            "is told how good an action was that nobody has taken. A program that "
            "samples again before log_prob() does so."
        ),
        f"Take the chances of what was done: distribution.log_prob({name}).",
    )


def _of_kept(words: Mapping[str, str]) -> tuple[str, str]:
    name = words.get("name", "actions")
    return (
        (
            f"Your program never clears its rollouts: in each update, `{name}` begin "
            "with all that the update before had. So a policy gradient, which is right "
            "for what the present policy has done, learns ever more from old policies."
        ),
        (
            "Clear the lists behind each update: buffer.clear(), or set them to [] at "
            "the beginning of the loop that collects."
        ),
    )


def _of_standardized(words: Mapping[str, str]) -> tuple[str, str]:
    name, of = words.get("name", "returns"), words.get("of", "advantages")
    return (
        (
            f"`{name}` are the values plus `{of}`, which you have standardized before: "
            "they have a mean of 0 and a deviation of 1. So the values learn themselves"
            " and some units more or less, whatever the rewards are."
        ),
        (
            f"Compute `{name}` first: returns = advantages + values, and standardize "
            "the advantages behind that, for the loss of the policy alone."
        ),
    )


def _of_larger(words: Mapping[str, str]) -> tuple[str, str]:
    return (
        (
            "The target takes the larger one of two critics' values "
            f"(`{words.get('name', 'q1')}` and its twin). Both guess too high at times,"
            " and the larger guess wins in each target, so the values grow beyond what "
            "rewards explain."
        ),
        (
            "Take the smaller one: target = reward + gamma * (1 - done) * "
            "min(q1, q2), one by one."
        ),
    )


def _of_roles(words: Mapping[str, str]) -> tuple[str, str]:
    name, _, other = words.get("kind", "target_net q_net").partition(" ")
    return (
        (
            "The networks of double Q-learning have exchanged their roles: "
            f"`{name}` chooses the next action, and `{other}` says what it is worth: "
            f"`{words.get('text', '')}`. So each update of `{other}` moves its own "
            "target at once, which the target network is there to prevent."
        ),
        (
            f"Let `{other}` choose and `{name}` judge: best = {other}(next_states)"
            f".argmax(1, keepdim=True); value = {name}(next_states).gather(1, best)."
        ),
    )


OF_EPISODES: Mapping[Fault, Callable[[Mapping[str, str]], tuple[str, str]]] = {
    Fault.TARGET_PAST_END: _of_past_end,
    Fault.ENDS_INVERTED: _of_inverted,
    Fault.SUM_PAST_END: _of_sum,
    Fault.RETURNS_OF_PAST: _of_past,
    Fault.RETURNS_REVERSED: _of_order,
    Fault.NOTHING_HAPPENS: _of_nothing,
    Fault.OBSERVATION_KEPT_ONCE: _of_one_observation,
    Fault.LARGEST_VALUE_LEARNS: _of_largest,
    Fault.SUM_OF_PRESENT: _of_no_next,
    Fault.DENSITY_BEFORE_LIMIT: _of_density,
    Fault.OTHER_ACTIONS_WEIGHED: _of_other,
    Fault.ROLLOUTS_KEPT: _of_kept,
    Fault.RETURNS_OF_STANDARDIZED: _of_standardized,
    Fault.LARGER_OF_CRITICS: _of_larger,
    Fault.ROLES_EXCHANGED: _of_roles,
}
