"""Which tensors SageMaker's rules judge: collections and expressions, given as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tdbg.compat.smdebug.analysis.utils import parse_list_from_str
from tdbg.compat.smdebug.trials.trial import Trial
from tdbg.modes import ModeKeys

__all__ = ["items_of", "mean_at", "select"]


def items_of(given: str | Iterable[str] | None) -> list[str]:
    """The items of a list, or of text with commas."""
    texts = parse_list_from_str(given) if isinstance(given, str) else list(given or ())
    return [text.strip() for text in texts if text.strip()]


def select(
    trial: Trial, collections: Iterable[str], expressions: Sequence[str]
) -> list[str]:
    """The names of the tensors of these collections, and those that match, sorted."""
    known = trial.collections()
    found: set[str] = set()
    for name in collections:
        if name in known:
            found |= known[name].tensor_names
    if expressions:
        found.update(trial.tensor_names(regex=expressions))
    return sorted(found)


def mean_at(
    trial: Trial, names: Iterable[str], step: int, mode: ModeKeys
) -> float | None:
    """The mean of these losses at a step; None if none was saved there."""
    tensors = map(trial.tensor, names)
    means = [
        tensor.reduction_value(step, "mean", mode)
        for tensor in tensors
        if tensor.has_step(step, mode)
    ]
    return sum(means) / len(means) if means else None
