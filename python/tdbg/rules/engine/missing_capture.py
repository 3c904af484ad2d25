"""Reasons why a rule found nothing: missing captures, and the settings that add them.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tdbg.config.collections import CollectionKeys
from tdbg.config.needs import Needs, every_need, missing, too_rare
from tdbg.config.quantities import conjoin, plural
from tdbg.modes import ModeKeys
from tdbg.rules.rule import Rule

if TYPE_CHECKING:
    from tdbg.config.collections import Collection
    from tdbg.trial import Trial

__all__ = ["NOTHING_KNOWN", "describe_missing"]

TRAIN, EVAL = ModeKeys.TRAIN, ModeKeys.EVAL
# Collections that only hooks of boosted trees fill, whatever the settings of others.
TREES = frozenset({CollectionKeys.TREES, CollectionKeys.FEATURE_IMPORTANCE})
NOTHING_KNOWN = (
    "nothing to judge: the run has too little data for a verdict, or none of the kind "
    "that this rule judges"
)
TOO_LITTLE = "nothing to judge: the rule needs"


def describe_missing(
    rule: Rule,
    trial: Trial,
    collections: Callable[[], Mapping[str, Collection]],
    *,
    is_blind: bool,
    has_judged: bool,
) -> str:
    """Explain why a rule found nothing, or say which captured data it lacks.

    Args:
        rule: A rule without findings.
        trial: The run; its configuration says what the hook was to capture.
        collections: Returns the collections of the run (called only if needed, so
            that the caller can share one result between rules).
        is_blind: Whether the rule selected no tensor at all.
        has_judged: Whether the rule returned any verdict except ``UNKNOWN``.

    Returns:
        A message for the rule's status; "" if the rule had all that it needs.
    """
    try:
        needs = every_need(rule.needs)
        requested = trial.configuration()
        lacking = missing(needs, collections(), requested, rule.name)
        rare = too_rare(needs, requested, rule.name)
        needed = sorted(frozenset().union(*(need.collections for need in needs)))
    except Exception:  # User code: `needs` of a rule may raise anything.
        needs, requested, lacking, rare, needed = (), {}, [], "", []
    unknown = _too_little(rule, trial)
    if is_blind and needed and TREES.issuperset(needed):
        return "nothing to judge: this training has no boosted trees"
    if lacking:
        is_some = has_judged and not is_blind
        how = (
            "some of what the rule needs is missing" if is_some else "nothing to judge"
        )
        return f"{how}: {'; '.join(lacking)}"
    if not is_blind:
        return "" if has_judged else "; ".join(filter(None, (unknown, rare)))
    if "include_collections" in requested.get("hook", requested):
        # The hook recorded its configuration, and nothing is missing from it.
        return f"nothing to judge: the training has no {_in_words(needs)}"
    what = ", ".join(needed) or "tensors that it selects"
    return (
        f"nothing to judge: {what} were not captured; "
        f'Hook(rules=["{rule.name}"]) captures them'
    )


def _too_little(rule: Rule, trial: Trial) -> str:
    """Say what the rule needs for a verdict, and how many steps the run has."""
    try:
        needed = rule.first_verdict
        trained, evaluated = (trial.count_steps(mode) for mode in (TRAIN, EVAL))
    except Exception:  # User code: properties of a rule may raise anything.
        return NOTHING_KNOWN
    if not needed:
        return NOTHING_KNOWN
    steps = f"{plural(trained, 'step')} of training"
    if evaluated:
        steps += f" and {evaluated} of evaluation"
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
