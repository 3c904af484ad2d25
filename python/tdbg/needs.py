"""What a rule needs captured, as plain data.

A rule states it, a hook acts on it; neither imports the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tdbg.collections import BUILT_IN
from tdbg.config import nearest
from tdbg.errors import ConfigurationError

__all__ = [
    "BEGINNING",
    "Needs",
    "every_need",
    "missing",
    "too_rare",
    "with_beginning",
]

#: Steps of a mode that are captured one by one for rules that ask for it.  What is set
#: up wrongly shows in them; they cost once what 500 steps cost later, at every tenth.
BEGINNING = 50

_NUMBERS = {"interval": 1, "first_steps": 1, "raw_limit": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be captured so that a rule can decide.

    A rule that needs different things of different tensors gives several; each is
    honoured by itself.

    Args:
        collections: Names of built-in collections.
        modules: Of what modules take and give only that of modules of these classes,
            by the class's name (``"Tanh"``); empty: of all. Of parameters and their
            gradients, only those whose owner is of these classes.
        statistics: Whether it reads their statistics.
        unit_summaries: Whether it reads unit summaries of them.
        histogram: Whether it reads their histograms.
        raw: Whether it reads raw values.
        interval: All of that at least every so many steps; None: as the hook does.
        first_steps: Only in the first so many steps of a mode; None: always.
        raw_limit: Tensors of more bytes than this are not kept raw for it.

    Raises:
        ConfigurationError: If a collection is unknown or a number out of its range.

    Example:
        >>> Needs(collections=frozenset({"labels"}), raw=True, interval=5).raw_limit
        1048576
    """

    collections: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    statistics: bool = True
    unit_summaries: bool = False
    histogram: bool = False
    raw: bool = False
    interval: int | None = None
    first_steps: int | None = None
    raw_limit: int = 1 << 20

    def __post_init__(self) -> None:
        for field in ("collections", "modules"):
            value = getattr(self, field)
            if isinstance(value, str):
                msg = f"needs: {field} is a set of names, not the text {value!r}"
                raise ConfigurationError(msg)
            object.__setattr__(self, field, frozenset(str(name) for name in value))
        for name in self.collections:
            if name not in BUILT_IN:
                msg = f"needs: no collection {name!r}; {nearest(name, BUILT_IN)}"
                raise ConfigurationError(msg)
        for field, least in _NUMBERS.items():
            number = getattr(self, field)
            if number is not None and number < least:
                msg = f"needs: {field} must be at least {least}, not {number}"
                raise ConfigurationError(msg)


def every_need(needs: Needs | Iterable[Needs]) -> tuple[Needs, ...]:
    """The needs of a rule that gives one or several.

    Example:
        >>> every_need(Needs()) == every_need([Needs()])
        True
    """
    return (needs,) if isinstance(needs, Needs) else tuple(needs)


def with_beginning(need: Needs) -> tuple[Needs, Needs]:
    """A need, and the same at every step of the beginning.

    For rules about mistakes that show within some steps, where the interval of the
    hook would tell of them too late.

    Example:
        >>> with_beginning(Needs(collections=frozenset({"weights"})))[1].first_steps
        50
    """
    return need, dataclasses.replace(need, interval=1, first_steps=BEGINNING)


class _Collection(Protocol):
    """What is used of a collection of a run."""

    @property
    def tensor_names(self) -> Iterable[str]: ...


# Where nothing of these is there although it was asked for.
_UNREGISTERED = {
    "losses": "no loss was registered: hook.register_loss(criterion)",
    "labels": "no registered loss was given any: hook.register_loss(criterion)",
    "predictions": "no registered loss was given any: hook.register_loss(criterion)",
    "model_inputs": "no model was registered: hook.register_module(model)",
}


def missing(
    needs: Needs | Iterable[Needs],
    collections: Mapping[str, _Collection],
    configuration: Mapping[str, Any],
    rule: str = "",
) -> list[str]:
    """Which needs a run does not serve, and the setting that would have.

    Args:
        needs: What a rule needs.
        collections: Those of the run, with the names in them:
            ``trial.collections()``.
        configuration: How capture was configured: ``trial.configuration()``; empty
            where that is not known, and then nothing is said.
        rule: Name of the rule.

    Example:
        >>> weights = Needs(collections=frozenset({"weights"}))
        >>> missing(weights, {}, {"include_collections": ["losses"]}, "DeadRelu")[0]
        'weights were not captured; include_collections=["weights"] or \
rules=["DeadRelu"] captures them'
    """
    told_of_hook = configuration.get("hook", configuration)
    if "include_collections" not in told_of_hook:
        return []
    told = [each for each in map(_from_json, told_of_hook.get("needs") or ()) if each]
    by_rule = f'rules=["{rule}"]' if rule else "a rule that needs them"
    found: list[str] = []
    absent: list[str] = []
    for need in every_need(needs):
        for name in sorted(need.collections):
            mine = dataclasses.replace(need, collections=frozenset({name}))
            if any(_serves(each, mine) for each in told):
                if name in _UNREGISTERED and not _names(collections, name):
                    found.append(f"{name} were asked for, but {_UNREGISTERED[name]}")
            else:
                rows = Needs(collections=mine.collections, modules=mine.modules)
                is_taken = any(_serves(each, rows) for each in told)
                is_ours = _is_included(name, collections, told_of_hook)
                if mine.unit_summaries:
                    found.append(
                        f"units of {name} were not counted; {by_rule} counts them"
                    )
                if not (mine.statistics or mine.raw or mine.histogram):
                    continue
                if is_ours or is_taken:
                    found += _unserved(
                        mine, name, told_of_hook, by_rule, is_ours=is_ours
                    )
                else:
                    absent.append(name)
    if absent:
        names = list(dict.fromkeys(absent))
        include = ", ".join(f'"{name}"' for name in names)
        found.insert(
            0,
            f"{_listed(names)} were not captured; include_collections=[{include}]"
            f"{_often(_often_raw(needs, names))} or {by_rule} captures them",
        )
    return list(dict.fromkeys(found))


def too_rare(
    needs: Needs | Iterable[Needs], configuration: Mapping[str, Any], rule: str
) -> str:
    """Of what a rule reads values more often than by default, unless it was asked for.

    Args:
        needs: What the rule needs.
        configuration: How capture was configured.
        rule: Name of the rule.

    Example:
        >>> labels = Needs(collections=frozenset({"labels"}), raw=True, interval=5)
        >>> too_rare(labels, {"include_collections": ["labels"]}, "Confusion")
        'it reads values of labels every 5 steps: rules=["Confusion"] saves them'
    """
    told_of_hook = configuration.get("hook", configuration)
    if "include_collections" not in told_of_hook:
        return ""
    told = [each for each in map(_from_json, told_of_hook.get("needs") or ()) if each]
    rare = [
        need
        for need in every_need(needs)
        if need.raw and need.interval and need.first_steps is None
        if not any(_serves(each, need) for each in told)
    ]
    if not rare:
        return ""
    names = sorted(frozenset().union(*(need.collections for need in rare)))
    every = _often_raw(rare, names)
    return (
        f"it reads values of {_listed(names)} every {every} steps: "
        f'rules=["{rule}"] saves them'
    )


def _often_raw(needs: Needs | Iterable[Needs], names: Iterable[str]) -> int | None:
    """At every how many steps values of one of these are needed."""
    return min(
        (
            need.interval
            for need in every_need(needs)
            if need.raw and need.interval and need.first_steps is None
            if not need.collections.isdisjoint(names)
        ),
        default=None,
    )


def _often(interval: int | None) -> str:
    return "" if interval is None else f" with save_interval={interval}"


def _listed(names: Sequence[str]) -> str:
    """As "weights, biases and outputs"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _is_included(
    name: str, collections: Mapping[str, _Collection], configuration: Mapping[str, Any]
) -> bool:
    """Whether the user asked for a collection, or for one that holds its tensors."""
    included = configuration["include_collections"]
    members = _names(collections, name)
    if any(not members.isdisjoint(_names(collections, each)) for each in included):
        return True
    return not {name, "all"}.isdisjoint(included)


def _unserved(
    need: Needs,
    name: str,
    configuration: Mapping[str, Any],
    by_rule: str,
    *,
    is_ours: bool,
) -> Iterable[str]:
    """What of a need for one collection is not stored, though it is captured.

    Args:
        need: What is needed.
        name: Of the collection.
        configuration: That of the hook.
        by_rule: How a rule is asked for.
        is_ours: Whether the user has asked for it.
    """
    # What only rules asked for follows no other setting.
    also = "" if is_ours else f'include_collections=["{name}"] with '
    if need.raw and not (configuration.get("reduction_config") or {}).get(
        "save_raw_tensor", True
    ):
        yield (
            f"values of {name} were not saved; {also}"
            f"ReductionConfig(save_raw_tensor=True) or {by_rule} saves them"
        )
    if need.histogram and not configuration.get("save_histogram"):
        yield (
            f"histograms of {name} were not stored; {also}save_histogram=True or "
            f"{by_rule} stores them"
        )


def _names(collections: Mapping[str, _Collection], name: str) -> set[str]:
    found = collections.get(name)
    return set() if found is None else set(found.tensor_names)


def _serves(told: Needs, need: Needs) -> bool:
    """Whether what was captured for one need is enough for another."""
    if not need.collections <= told.collections:
        return False
    if told.modules and not (need.modules and need.modules <= told.modules):
        return False
    kinds = ("statistics", "unit_summaries", "histogram", "raw")
    if any(getattr(need, kind) and not getattr(told, kind) for kind in kinds):
        return False
    if need.raw and told.raw_limit < need.raw_limit:
        return False
    return told.first_steps is None or (
        need.first_steps is not None and need.first_steps <= told.first_steps
    )


def _from_json(document: object) -> Needs | None:
    """The needs that a configuration event tells of; None where that is none."""
    if not isinstance(document, Mapping):
        return None
    known = {field.name for field in dataclasses.fields(Needs)}
    try:
        return Needs(**{key: document[key] for key in known & set(document)})
    except (ConfigurationError, TypeError):
        return None
