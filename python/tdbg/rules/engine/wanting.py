"""What a rule would have needed and the run does not hold.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tdbg.needs import every_need, missing
from tdbg.rules._base import Rule
from tdbg.rules.source import Source

__all__ = ["what_is_wanting"]


def what_is_wanting(rule: Rule, source: Source, *, is_blind: bool) -> str:
    """Why a rule could find nothing, or not all, and which setting mends that; or "".

    Args:
        rule: It has found nothing.
        source: The run, which says how capture was configured if it knows.
        is_blind: Whether it was shown no tensor at all.
    """
    configuration: Callable[[], Mapping[str, Any]] = getattr(
        source, "configuration", dict
    )
    try:
        needs = every_need(rule.needs)
        told = missing(needs, source.collections(), configuration(), rule.name)
        collections = sorted(frozenset().union(*(n.collections for n in needs)))
    except Exception:  # A rule is anybody's code.
        told, collections = [], []
    if told:
        how = "nothing to judge" if is_blind else "not all that it needs is there"
        return f"{how}: {'; '.join(told)}"
    if not is_blind:
        return ""
    what = ", ".join(collections) or "tensors that it selects"
    return (
        f"nothing to judge: {what} were not captured; "
        f'Hook(rules=["{rule.name}"]) captures them'
    )
