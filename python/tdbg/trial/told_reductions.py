"""Reductions that another library computed, of tensors whose values it did not keep.

They are scalars, named by ``reduction_name``; a shape is a small tensor, named by
``shape_name``.  Of such a tensor there are no rows: what is not told is not known.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

from itertools import product

from tdbg.run.told_names import NAMES, reduction_name, shape_name
from tdbg.trial import values
from tdbg.trial.run import RunState
from tdbg.trial.selection import Count, steps_of

__all__ = ["shape", "steps", "tensor_named", "values_at"]

_KINDS = tuple(product(NAMES, (False, True)))


def tensor_named(run: RunState, name: str) -> str | None:
    """Return the tensor called *name* of which only reductions or a shape are told."""
    names = [reduction_name(kind, name, absolute) for kind, absolute in _KINDS]
    for prefixed in (*names, shape_name(name)):
        found = run.resolve(prefixed)
        if found is not None:
            return found[len(prefixed) - len(name) :]
    return None


def steps(run: RunState, name: str, mode: Count, worker: str | None) -> list[int]:
    """Return the steps at which anything of a tensor is told, as ``steps_of`` does."""
    found: set[int] = set()
    for each in _told(run, name).values():
        found.update(steps_of(run, each, mode, "any", False, worker))
    found.update(steps_of(run, shape_name(name), mode, "any", False, worker))
    return sorted(found)


def values_at(
    run: RunState, name: str, step: int, worker: str | None
) -> dict[tuple[str, bool], float]:
    """Return what is told at a global step, by name and whether of absolute values.

    Without a worker it is what the first one says.
    """
    found: dict[tuple[str, bool], float] = {}
    for kind, each in _told(run, name).items():
        for entry in values.entries(run, each, step, worker):
            if entry.scalar is not None:
                found.setdefault(kind, entry.scalar)
    return found


def shape(
    run: RunState, name: str, step: int, worker: str | None
) -> tuple[int, ...] | None:
    """Return the shape that is told at a global step, or None."""
    for entry in values.entries(run, shape_name(name), step, worker):
        return tuple(values.read_value(entry).tolist())
    return None


def _told(run: RunState, name: str) -> dict[tuple[str, bool], str]:
    names = {kind: reduction_name(kind[0], name, kind[1]) for kind in _KINDS}
    return {
        kind: each for kind, each in names.items() if run.definition(each) is not None
    }
