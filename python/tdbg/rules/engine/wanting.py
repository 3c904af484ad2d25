"""What a rule would have needed and the run does not hold.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tdbg.collections import CollectionKeys
from tdbg.needs import Needs, every_need, missing, too_rare
from tdbg.rules._base import Rule
from tdbg.rules.source import CollectionSource, Source

__all__ = ["what_is_wanting"]

# What frameworks of boosted trees fill, and no setting of another one captures.
TREES = frozenset({CollectionKeys.TREES, CollectionKeys.FEATURE_IMPORTANCE})
NOTHING_KNOWN = (
    "nothing to judge: what was recorded is too little for a verdict, or not of the "
    "kind that the rule is about"
)


def what_is_wanting(
    rule: Rule,
    source: Source,
    captured: Callable[[], Mapping[str, CollectionSource]],
    *,
    is_blind: bool,
    has_judged: bool,
) -> str:
    """Why a rule could find nothing, or not all, and which setting mends that; or "".

    Args:
        rule: It has found nothing.
        source: The run, which says how capture was configured if it knows.
        captured: Gives the collections of the run: it is asked once for all rules.
        is_blind: Whether it was shown no tensor at all.
        has_judged: Whether it has given a verdict that is not unknown.
    """
    configuration: Callable[[], Mapping[str, Any]] = getattr(
        source, "configuration", dict
    )
    try:
        needs = every_need(rule.needs)
        asked = configuration()
        told = missing(needs, captured(), asked, rule.name)
        rare = too_rare(needs, asked, rule.name)
        collections = sorted(frozenset().union(*(n.collections for n in needs)))
    except Exception:  # A rule is anybody's code.
        needs, asked, told, rare, collections = (), {}, [], "", []
    if is_blind and collections and TREES.issuperset(collections):
        return "nothing to judge: this is no training of boosted trees"
    if told:
        is_some = has_judged and not is_blind
        how = "not all that it needs is there" if is_some else "nothing to judge"
        return f"{how}: {'; '.join(told)}"
    if not is_blind:
        return "" if has_judged else "; ".join(filter(None, (NOTHING_KNOWN, rare)))
    if "include_collections" in asked.get("hook", asked):
        # A hook that tells what it was asked for: nothing of it is missing.
        return f"nothing to judge: the training has no {_kind(needs)}"
    what = ", ".join(collections) or "tensors that it selects"
    return (
        f"nothing to judge: {what} were not captured; "
        f'Hook(rules=["{rule.name}"]) captures them'
    )


def _kind(needs: Sequence[Needs]) -> str:
    """What a rule looks at, in words: "gradients of Embedding"."""
    kind = _in_words(frozenset().union(*(need.collections for need in needs)))
    if len({need.modules for need in needs}) == 1 and needs[0].modules:
        kind += f" of {' or '.join(sorted(needs[0].modules))}"
    return kind or "tensors that it selects"


def _in_words(collections: Iterable[str]) -> str:
    return " and ".join(sorted(collections)).replace("_", " ")
