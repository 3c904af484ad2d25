"""Chains of optax: whether their transformations make sense in their order.

``optax.masked`` gives what its mask leaves out on as it is: gradients, where nothing
else makes steps of them.

Thread safety: reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from tdbg.run.observations import Fault, Observation

__all__ = ["faults_of_chain", "transformation_in"]

_CHAIN, _SUPPORTING = "chain", "with_extra_args_support"
# A limit of gradients that is this many times the rate does not act on single updates.
_FAR = 10.0
_LIMITS = {"clip": "max_delta", "clip_by_global_norm": "max_norm"}
# Transformations whose results are gradients as before, and no steps.
_KEEP_GRADIENTS = frozenset({"add_decayed_weights", *_LIMITS})
_MOST_DEPTH = 8
# Parameters that are named, at most.
_MOST_NAMED = 4
# Steps, in lengths of a schedule, by which it is over, whoever else makes steps.
_LONG_OVER = 5


class _Part(NamedTuple):
    """A transformation: the function that has made it, and its variables."""

    name: str
    given: Mapping[str, Any]


def faults_of_chain(transformation: Any, step: int = 0) -> Iterator[Observation]:
    """Yield what stands in the wrong place of a chain.

    Args:
        transformation: A ``GradientTransformation``.
        step: As of which it is known.

    Example:
        >>> import optax
        >>> wrong = optax.chain(optax.adam(1e-3), optax.clip_by_global_norm(1.0))
        >>> [each.fault.value for each in faults_of_chain(wrong)]
        ['clipped_updates']
        >>> right = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
        >>> list(faults_of_chain(right))
        []
    """
    parts = list(_parts_of(getattr(transformation, "update", None)))
    yield from _faults_of_schedules(parts)
    yield from _faults_of_masks(parts, step)
    rates = [(i, rate) for i, each in enumerate(parts) if (rate := _rate_of(each))]
    if not rates or any(not each.name for each in parts):
        return
    last, rate = rates[-1]
    of_adam = any(each.name.startswith("scale_by_") for each in parts[:last])
    for each in parts[last + 1 :]:
        limit = _number(each.given.get(_LIMITS.get(each.name, "")))
        if limit is not None and of_adam and limit >= _FAR * rate:
            numbers = {"limit": limit, "rate": rate}
            words = {"function": f"optax.{each.name}"}
            yield Observation(
                Fault.CLIPPED_UPDATES, step, ("optimizer",), numbers, words
            )
        decay = _number(each.given.get("weight_decay"))
        if each.name == "add_decayed_weights" and decay is not None and decay > 0:
            numbers = {"decay": decay, "rate": rate}
            yield Observation(Fault.DECAY_GROWS, step, ("optimizer",), numbers)


def _faults_of_schedules(parts: Sequence[_Part]) -> Iterator[Observation]:
    """Yield that a schedule is at 0, as of a step by which it was over long ago."""
    for each in parts:
        schedule = each.given.get("step_size_fn")
        if each.name != "scale_by_schedule" or schedule is None:
            continue
        schedule = _variables_of(schedule).get("learning_rate", schedule)
        found = _end_of(schedule)
        if found is not None and found[0] >= 1 and found[1] == 0.0:
            length = found[0]
            name = getattr(schedule, "__qualname__", "schedule").partition(".")[0]
            yield Observation(
                Fault.SCHEDULE_AT_ZERO,
                round(_LONG_OVER * length),
                (f"optax.{name}",),
                {"length": length},
            )


def _faults_of_masks(parts: Sequence[_Part], step: int) -> Iterator[Observation]:
    """Yield that gradients are added to the parameters that no mask names."""
    if any(each.name not in {"masked", *_LIMITS} for each in parts):
        return  # It may be what makes steps of the others.
    makes_steps, masks = False, []
    for each in parts:
        inner = [*_parts_of(getattr(each.given.get("inner"), "update", None))]
        makes_steps |= any(map(_rate_of, inner))
        # A schedule, or what nobody knows, may make steps, too.
        if any(part.name not in _KEEP_GRADIENTS for part in inner):
            masks.append(each.given.get("mask"))
    if not makes_steps or any(map(callable, masks)):
        return
    covered: dict[str, bool] = {}
    for mask in masks:
        for path, is_in in jax.tree_util.tree_flatten_with_path(mask)[0]:
            name = jax.tree_util.keystr(path)
            covered[name] = covered.get(name, False) or bool(is_in)
    names = tuple(sorted(name for name, is_in in covered.items() if not is_in))
    if names:
        numbers = {"parameters": float(len(names))}
        yield Observation(Fault.MASKED_NOT_FROZEN, step, names[:_MOST_NAMED], numbers)


def _end_of(schedule: Any, depth: int = 0) -> tuple[float, float] | None:
    """Return the length of a schedule of optax and its last rate; None: unknown."""
    if not getattr(schedule, "__module__", "").startswith("optax.") or depth > 2:
        return None
    name = getattr(schedule, "__qualname__", "").partition(".<locals>")[0]
    given = _variables_of(schedule)
    if name == "join_schedules":
        borders, every = given.get("boundaries"), given.get("schedules")
        if not borders or not every:
            return None
        last = _end_of(every[-1], depth + 1)
        return None if last is None else (float(borders[-1]) + last[0], last[1])
    if name == "cosine_decay_schedule":
        length, rate = _number(given.get("decay_steps")), _number(given.get("alpha"))
        return None if length is None or rate is None else (length, rate)
    if name == "polynomial_schedule":
        length, rate = (
            _number(given.get(k)) for k in ("transition_steps", "end_value")
        )
        begin = _number(given.get("transition_begin")) or 0.0
        return None if length is None or rate is None else (begin + length, rate)
    return None


def transformation_in(value: Any) -> Any:
    """Return the optax transformation that a value is, or has; None: it has none.

    Optimizers of NNX and training states of Flax have one that is called ``tx``.

    Example:
        >>> import optax
        >>> tx = optax.sgd(0.1)
        >>> transformation_in(tx) is tx, transformation_in(0.1)
        (True, None)
    """
    for each in (value, getattr(value, "tx", None)):
        if isinstance(each, tuple) and {"init", "update"} <= {*dir(type(each))}:
            return each
    return None


def _parts_of(function: Any, depth: int = 0) -> Iterator[_Part]:
    """Yield the transformations of a chain in order; one without name: unknown."""
    function = _own_of(function)
    name = getattr(function, "__qualname__", "").partition(".<locals>")[0]
    given = _variables_of(function)
    is_of_optax = getattr(function, "__module__", "").startswith("optax.")
    if not is_of_optax or depth > _MOST_DEPTH:
        yield _Part("", {})
    elif name == _CHAIN:
        functions = given.get("update_fns")
        if not isinstance(functions, Sequence):
            yield _Part("", {})
            return
        for each in functions:
            yield from _parts_of(each, depth + 1)
    elif name == _SUPPORTING:
        inner = getattr(given.get("tx"), "update", None)
        yield from _parts_of(inner, depth + 1)
    else:
        yield _Part(name, given)


def _own_of(function: Any) -> Any:
    """Return an update as optax has made it: ``tdbg run`` wraps it."""
    while getattr(function, "__globals__", {}).get("__name__", "").startswith("tdbg."):
        function = getattr(function, "__wrapped__", None)
    return function


def _variables_of(function: Any) -> Mapping[str, Any]:
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    if code is None:
        return {}
    found = {}
    for name, cell in zip(code.co_freevars, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # It is empty.
            continue
    return found


def _rate_of(part: _Part) -> float | None:
    """Return the size of a learning rate that turns gradients into steps downhill."""
    step = _number(part.given.get("step_size")) if part.name == "scale" else None
    return -step if step is not None and step < 0 else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None
