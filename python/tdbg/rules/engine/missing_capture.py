"""Reasons why a rule found nothing: missing captures, and the settings that add them.

Thread safety: pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.config.collections import CollectionKeys, Role
from tdbg.config.needs import UNREGISTERED, Needs, every_need, missing, too_rare
from tdbg.config.quantities import conjoin, plural
from tdbg.config.tensor_names import PREFIXES
from tdbg.modes import ModeKeys
from tdbg.rules.rule import Rule
from tdbg.rules.training_facts import OF_LAYERS, TrainingFacts
from tdbg.run.model_info import are_trees
from tdbg.run.told_phases import ToldPhases, world_size_of

if TYPE_CHECKING:
    from tdbg.config.collections import Collection
    from tdbg.trial import Trial

__all__ = ["NOTHING_KNOWN", "Silence", "describe_missing", "facts_of"]

TRAIN, EVAL = ModeKeys.TRAIN, ModeKeys.EVAL
NOTHING_KNOWN = (
    "nothing to judge: the run has too little data for a verdict, or none of the kind "
    "that this rule judges"
)
TOO_LITTLE = "nothing to judge: the rule needs"
_GIVEN = "no loss was given any: watch(..., loss=...)"
_TAPPED = 'the step does not name them: tj.tap(x, "{}", role=tj.Role.{})'
# Why a collection is empty, and what the program can do, where PyTorch's differs.
UNREGISTERED_IN: Mapping[str, Mapping[str, str]] = {
    "jax": {
        "losses": "the step returns none: hook.jit(loss=...)",
        "labels": _TAPPED.format("labels", "LABEL"),
        "predictions": _TAPPED.format("predictions", "PREDICTION"),
        "model_inputs": _TAPPED.format("inputs", "MODEL_INPUT"),
    },
    "keras": {
        "losses": "the model was compiled without a loss: model.compile(loss=...)",
        "labels": "the model was compiled without a loss: model.compile(loss=...)",
        "predictions": "the model was compiled without a loss: model.compile(loss=...)",
    },
    "tensorflow": {
        "losses": "there is none: watch(..., loss=...)",
        "labels": _GIVEN,
        "predictions": _GIVEN,
    },
}
# Why there is no learning rate, and what the program can do.
NO_RATES = {
    "jax": "the optimizer's state holds no learning rate: optax.inject_hyperparams "
    "puts it there",
}


class Silence(NamedTuple):
    """Why a rule found nothing.

    Attributes:
        message: For the rule's status; "" if the rule had all that it needs.
        applies: Whether the rule's question arises in this training.
    """

    message: str = ""
    applies: bool = True


def facts_of(
    trial: Trial,
    collections: Mapping[str, Collection],
    profile: Iterable[str],
    n_bins: int,
    told: ToldPhases,
) -> TrainingFacts:
    """Return what a training consists of.

    Args:
        trial: The run.
        collections: Its collections.
        profile: The tables of its profile that have rows.
        n_bins: How many bins of it were judged.
        told: The phases that it tells.
    """
    infos, prefix = trial.model_info(), PREFIXES[Role.UNIT_SUMMARY]
    units = (each for each in trial.tensor_names() if each.startswith(prefix))
    is_of_trees = are_trees(collections, infos)
    configuration = trial.configuration()
    hook = "imported runs" if "imported" in configuration else told.hook
    return TrainingFacts.of(
        trial.modes(),
        infos,
        units,
        has_trees=is_of_trees,
        profile=profile,
        n_workers=len(trial.workers()),
        n_bins=n_bins,
        told=told,
        n_ranks=world_size_of(configuration),
        observations=trial.observations(),
        hook=hook,
    )


def describe_missing(
    rule: Rule,
    trial: Trial,
    collections: Callable[[], Mapping[str, Collection]],
    facts: Callable[[], TrainingFacts],
    *,
    is_blind: bool,
    has_judged: bool,
) -> Silence:
    """Explain why a rule found nothing, or say which captured data it lacks.

    Args:
        rule: A rule without findings.
        trial: The run; its configuration says what the hook was to capture.
        collections: Returns the collections of the run (called only if needed, so
            that the caller can share one result between rules).
        facts: Likewise returns what the training consists of.
        is_blind: Whether the rule selected no tensor at all.
        has_judged: Whether the rule returned any verdict except ``UNKNOWN``.
    """
    training, requested = facts(), trial.configuration()
    try:
        unnamed = rule.absent(trial.tensor_names())
        if unnamed is not None:
            return _of_named(rule, unnamed, trial, has_judged=has_judged)
        has_judged &= training.n_bins >= rule.fewest_bins
        why = rule.unobserved(training)
        why = why or ("" if has_judged else rule.inapplicable(training))
        if why:
            return Silence(f"does not apply: {why}", applies=False)
        needs = every_need(rule.needs)
        tables = frozenset[str]().union(*(need.profile for need in needs))
        if tables:
            absent = sorted(tables - training.profile)
            return _of_profile(rule, absent, training, has_judged=has_judged)
        if training.has_trees:
            needs = _of_trees(needs)
        ways = _unregistered(requested)
        lacking = missing(needs, collections(), requested, rule.name, ways)
        rare = too_rare(needs, requested, rule.name)
    except Exception:  # User code: `needs` of a rule may raise anything.
        needs, requested, lacking, rare = (), {}, [], ""
    if lacking:
        return _lacking(lacking, is_some=has_judged and not is_blind)
    if has_judged and not is_blind:
        return Silence()
    if not is_blind:
        return Silence("; ".join(filter(None, (_too_little(rule, trial), rare))))
    return Silence(_unseen(rule, needs, requested))


def _of_named(rule: Rule, absent: str, trial: Trial, *, has_judged: bool) -> Silence:
    """Say why a rule gave no verdict on what the user named, or on some of it."""
    if has_judged:
        lacking = f"some of what the rule names is missing: {absent}"
        return Silence(lacking if absent else "")
    why = f"nothing to judge: {absent}" if absent else _too_little(rule, trial)
    return Silence(why)


def _lacking(lacking: Iterable[str], *, is_some: bool) -> Silence:
    """Say what a rule lacks; *is_some*: and that it has the rest."""
    how = "some of what the rule needs is missing" if is_some else "nothing to judge"
    return Silence(f"{how}: {'; '.join(lacking)}")


def _of_profile(
    rule: Rule, absent: Sequence[str], training: TrainingFacts, *, has_judged: bool
) -> Silence:
    """Say why a rule about the profile gave no verdict, if so."""
    unreported = rule.unjudged(training)
    return Silence("" if has_judged else _unprofiled(rule, absent, unreported))


def _unseen(
    rule: Rule, needs: Sequence[Needs], configuration: Mapping[str, Any]
) -> str:
    """Say what a rule needs that selected no tensor at all."""
    if "include_collections" in configuration.get("hook", configuration):
        # The hook recorded its configuration, and nothing is missing from it.
        why = f"the training has no {_in_words(needs)}"
        if all(need.collections == {CollectionKeys.SCALARS} for need in needs):
            why = NO_RATES.get(_framework(configuration), why)
        return f"nothing to judge: {why}"
    needed = sorted(frozenset().union(*(need.collections for need in needs)))
    what = ", ".join(needed) or "tensors that it selects"
    return (
        f"nothing to judge: {what} were not captured; "
        f'Hook(rules=["{rule.name}"]) captures them'
    )


def _unprofiled(rule: Rule, absent: Sequence[str], unreported: str) -> str:
    """Say why a rule about the profile gave no verdict."""
    if unreported:
        return f"nothing to judge: {unreported}"
    if absent:
        return f"nothing to judge: the profile has no {conjoin(absent)} rows"
    if rule.first_verdict:
        return f"{TOO_LITTLE} {rule.first_verdict}"
    return NOTHING_KNOWN


def _of_trees(needs: Iterable[Needs]) -> tuple[Needs, ...]:
    """Return the part of the needs that boosted trees can have."""
    left = ((need, need.collections - OF_LAYERS) for need in needs)
    return tuple(
        dataclasses.replace(need, collections=names) for need, names in left if names
    )


def _unregistered(configuration: Mapping[str, Any]) -> Mapping[str, str]:
    """Return why collections are empty, in the framework that wrote the run."""
    return {**UNREGISTERED, **UNREGISTERED_IN.get(_framework(configuration), {})}


def _framework(configuration: Mapping[str, Any]) -> str:
    framework = configuration.get("framework")
    return str(framework.get("name")) if isinstance(framework, Mapping) else ""


def _too_little(rule: Rule, trial: Trial) -> str:
    """Say what the rule needs for a verdict, and how many steps the run has."""
    try:
        needed = rule.first_verdict
        trained, evaluated = (trial.count_steps(mode) for mode in (TRAIN, EVAL))
    except Exception:  # User code: properties of a rule may raise anything.
        return NOTHING_KNOWN
    if not needed:
        return NOTHING_KNOWN
    steps = f"{plural(trained, 'recorded step')} of training"
    if evaluated:
        steps += f" and {evaluated:,} of evaluation"
    return f"{TOO_LITTLE} {needed}; the run has {steps}"


def _in_words(needs: Sequence[Needs]) -> str:
    """Return the needs of a rule in words: "gradients of Embedding"."""
    words = _join(frozenset().union(*(need.collections for need in needs)))
    if len({need.modules for need in needs}) == 1 and needs[0].modules:
        words += f" of {' or '.join(sorted(needs[0].modules))}"
    return words or "tensors that it selects"


def _join(collections: Iterable[str]) -> str:
    names = [each.replace("_", " ") for each in sorted(collections)]
    return conjoin(names) if names else ""
