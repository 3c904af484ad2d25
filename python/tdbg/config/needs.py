"""The needs of rules: which tensors to capture, and how, as plain data.

A rule states it, a hook acts on it; neither imports the other.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tdbg.config.class_kinds import kind_of_class
from tdbg.config.collections import BUILT_IN
from tdbg.config.messages import nearest, whole_number
from tdbg.config.quantities import conjoin
from tdbg.errors import ConfigurationError

__all__ = [
    "BEGINNING",
    "PROFILE_TABLES",
    "UNREGISTERED",
    "Needs",
    "every_need",
    "missing",
    "too_rare",
    "with_beginning",
]

#: Steps of a mode that are captured one by one for rules that ask for it.  What is set
#: up wrongly shows in them; they cost once what 500 steps cost later, at every tenth.
BEGINNING = 50

#: The tables of a profile that a rule may ask for.
PROFILE_TABLES = (
    *("step", "system", "core", "disk", "network", "gpu", "process", "loader"),
    *("collective", "fingerprint"),
)
_NUMBERS = {"interval": 1, "first_steps": 1, "raw_limit": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """A set of tensors that must be captured for a rule to decide.

    A rule with different needs for different tensors declares several.

    Args:
        collections: Names of built-in collections.
        modules: Kinds of modules (``Kind.TANH``, or ``"tanh"``), which hold for every
            framework, or names of their classes (``"Tanh"``).  Inputs, outputs,
            parameters and gradients of other modules are left out; empty: none is.
        statistics: Whether the rule reads their statistics.
        unit_summaries: Whether it reads unit summaries of them.
        histogram: Whether it reads their histograms.
        raw: Whether it reads raw values.
        interval: At least every so many steps; None: as the hook does.
        first_steps: Only in the first so many steps of a mode; None: always.
        raw_limit: Values of tensors with more bytes than this are not saved for it.
        profile: Tables of the profile that it reads (``"step"``, ``"system"``,
            ``"loader"``); such a rule finds them in ``window.profile``.

    Raises:
        ConfigurationError: If a collection or table is unknown, or a number out of its
            range.

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
    profile: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for field in ("collections", "modules", "profile"):
            value = getattr(self, field)
            if isinstance(value, str):
                msg = f"needs: {field} is a set of names, not the text {value!r}"
                raise ConfigurationError(msg)
            object.__setattr__(self, field, frozenset(str(name) for name in value))
        for name in self.collections:
            if name not in BUILT_IN:
                msg = f"needs: no collection {name!r}; {nearest(name, BUILT_IN)}"
                raise ConfigurationError(msg)
        for name in self.profile:
            if name not in PROFILE_TABLES:
                msg = (
                    f"needs: a profile has no table {name!r}; "
                    f"{nearest(name, PROFILE_TABLES)}"
                )
                raise ConfigurationError(msg)
        for field, least in _NUMBERS.items():
            number = getattr(self, field)
            if number is not None and whole_number(number, least) is None:
                msg = f"needs: {field} must be at least {least}, not {number!r}"
                raise ConfigurationError(msg)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON, with sets as sorted lists."""
        sets = {
            "collections": sorted(self.collections),
            "modules": sorted(self.modules),
            "profile": sorted(self.profile),
        }
        return {**dataclasses.asdict(self), **sets}


def every_need(needs: Needs | Iterable[Needs]) -> tuple[Needs, ...]:
    """Return the needs of a rule that gives one or several.

    Example:
        >>> every_need(Needs()) == every_need([Needs()])
        True
    """
    return (needs,) if isinstance(needs, Needs) else tuple(needs)


def with_beginning(need: Needs) -> tuple[Needs, Needs]:
    """Return a need, and the same at every step of the beginning.

    For rules about mistakes that show within some steps, where the interval of the
    hook would show them too late.

    Example:
        >>> with_beginning(Needs(collections=frozenset({"weights"})))[1].first_steps
        50
    """
    return need, dataclasses.replace(need, interval=1, first_steps=BEGINNING)


class _Collection(Protocol):
    """The part of a run's collection that ``missing`` uses."""

    @property
    def tensor_names(self) -> Iterable[str]: ...


# Why a collection can be empty although it was requested, as PyTorch's hook says it.
UNREGISTERED: Mapping[str, str] = {
    "losses": "no loss was registered: hook.register_loss(criterion)",
    "labels": "no registered loss received any: hook.register_loss(criterion)",
    "predictions": "no registered loss received any: hook.register_loss(criterion)",
    "model_inputs": "no model was registered: hook.register_module(model)",
}


def missing(
    needs: Needs | Iterable[Needs],
    collections: Mapping[str, _Collection],
    configuration: Mapping[str, Any],
    rule: str = "",
    unregistered: Mapping[str, str] = UNREGISTERED,
) -> list[str]:
    """Return the needs that a run does not serve, and the settings that would.

    Args:
        needs: What a rule needs.
        collections: Those of the run, with the names in them:
            ``trial.collections()``.
        configuration: How capture was configured: ``trial.configuration()``; empty
            where that is not known, and then nothing is said.
        rule: Name of the rule.
        unregistered: Why a collection can be empty although it was requested, and what
            the program can do, by the collection's name.

    Example:
        >>> weights = Needs(collections=frozenset({"weights"}))
        >>> missing(weights, {}, {"include_collections": ["losses"]}, "DeadRelu")[0]
        'weights were not captured; include_collections=["weights"] or \
rules=["DeadRelu"] captures them'
    """
    hook = configuration.get("hook", configuration)
    if "include_collections" not in hook:
        return []
    captured = _captured(hook)
    by_rule = f'rules=["{rule}"]' if rule else "a rule that needs them"
    found: list[str] = []
    absent: list[str] = []
    for need in every_need(needs):
        for name in sorted(need.collections):
            single = dataclasses.replace(need, collections=frozenset({name}))
            if any(_serves(each, single) for each in captured):
                if name in unregistered and not _names(collections, name):
                    found.append(f"{name} were asked for, but {unregistered[name]}")
                continue
            if single.unit_summaries:
                found.append(f"units of {name} were not counted; {by_rule} counts them")
            if not (single.statistics or single.raw or single.histogram):
                continue
            rows = Needs(collections=single.collections, modules=single.modules)
            is_included = _is_included(name, collections, hook)
            if is_included or any(_serves(each, rows) for each in captured):
                found += _unserved(single, name, hook, by_rule, is_included=is_included)
            else:
                absent.append(name)
    names = list(dict.fromkeys(absent))
    return [*_absent(names, needs, by_rule), *dict.fromkeys(found)]


def _absent(
    names: list[str], needs: Needs | Iterable[Needs], by_rule: str
) -> list[str]:
    """Return the message about collections that were not captured, if there are any."""
    if not names:
        return []
    include = ", ".join(f'"{name}"' for name in names)
    settings = f"include_collections=[{include}]{_often(_often_raw(needs, names))}"
    return [
        f"{conjoin(names)} were not captured; {settings} or {by_rule} captures them"
    ]


def too_rare(
    needs: Needs | Iterable[Needs], configuration: Mapping[str, Any], rule: str
) -> str:
    """Collections whose values a rule reads more often than they are saved.

    Empty if a rule in the hook requested them.

    Args:
        needs: What the rule needs.
        configuration: How capture was configured.
        rule: Name of the rule.

    Example:
        >>> labels = Needs(collections=frozenset({"labels"}), raw=True, interval=5)
        >>> too_rare(labels, {"include_collections": ["labels"]}, "Confusion")
        'it reads values of labels every 5 steps: rules=["Confusion"] saves them'
    """
    hook = configuration.get("hook", configuration)
    if "include_collections" not in hook:
        return ""
    captured = _captured(hook)
    rare = [
        need
        for need in every_need(needs)
        if need.raw and need.interval and need.first_steps is None
        if not any(_serves(each, need) for each in captured)
    ]
    if not rare:
        return ""
    names = sorted(frozenset().union(*(need.collections for need in rare)))
    every = _often_raw(rare, names)
    return (
        f"it reads values of {conjoin(names)} every {every} steps: "
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


def _is_included(
    name: str, collections: Mapping[str, _Collection], configuration: Mapping[str, Any]
) -> bool:
    """Return whether the user asked for a collection or one that includes it."""
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
    is_included: bool,
) -> Iterable[str]:
    """Return what a captured collection lacks for a need.

    Args:
        need: What is needed.
        name: Of the collection.
        configuration: That of the hook.
        by_rule: How a rule is asked for.
        is_included: Whether the user has asked for it.
    """
    # What only rules asked for follows no other setting.
    also = "" if is_included else f'include_collections=["{name}"] with '
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


def _serves(captured: Needs, need: Needs) -> bool:
    """Return whether what was captured for one need is enough for another."""
    if not need.collections <= captured.collections:
        return False
    modules, captured_modules = _kinds(need.modules), _kinds(captured.modules)
    if captured_modules and not (modules and modules <= captured_modules):
        return False
    kinds = ("statistics", "unit_summaries", "histogram", "raw")
    if any(getattr(need, kind) and not getattr(captured, kind) for kind in kinds):
        return False
    if need.raw and captured.raw_limit < need.raw_limit:
        return False
    return captured.first_steps is None or (
        need.first_steps is not None and need.first_steps <= captured.first_steps
    )


def _kinds(modules: Iterable[str]) -> set[str]:
    """Return the kinds of classes that have one; needs of older runs name classes."""
    return {kind_of_class(name) or name for name in modules}


def _captured(hook: Mapping[str, Any]) -> tuple[Needs, ...]:
    """Return the needs of the rules in the hook, as far as they can be read."""
    needs = hook.get("needs")
    return _parsed(json.dumps(needs)) if isinstance(needs, list) else ()


# Each rule that finds nothing asks for those of the same few runs.
@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> tuple[Needs, ...]:
    found = map(_from_json, json.loads(text))
    return tuple(each for each in found if each is not None)


def _from_json(document: object) -> Needs | None:
    """Return the needs in a configuration event; None if the document is not valid."""
    if not isinstance(document, Mapping):
        return None
    known = {field.name for field in dataclasses.fields(Needs)}
    try:
        return Needs(**{key: document[key] for key in known & set(document)})
    except (ConfigurationError, TypeError, ValueError):
        return None
