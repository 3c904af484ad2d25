"""Rules by name: those of tdbg, and those that other packages bring.

A package brings a rule by an entry point of the group ``tdbg.rules``, whose name is
that of the rule and whose object is its class.  It is imported when it is asked for.

Thread safety: registration is meant for import time; looking up is safe.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from tdbg.errors import ConfigurationError, UnknownRule
from tdbg.rules._base import Rule, parameters_of
from tdbg.rules.files import is_in_file, load

__all__ = [
    "default_rules",
    "describe",
    "get",
    "make",
    "names",
    "register",
]

GROUP = "tdbg.rules"
# Where the built-in rules are, so that a name imports one module.
BUILT_IN = {
    "AllZero": "tdbg.rules.tensors.all_zero",
    "ClassImbalance": "tdbg.rules.data.class_imbalance",
    "Confusion": "tdbg.rules.data.confusion",
    "DeadEmbedding": "tdbg.rules.activations.dead_embedding",
    "DeadRelu": "tdbg.rules.activations.dead_relu",
    "ExplodingGradient": "tdbg.rules.gradients.exploding",
    "ExplodingTensor": "tdbg.rules.tensors.non_finite",
    "FeatureImportance": "tdbg.rules.trees",
    "LossNotDecreasing": "tdbg.rules.loss.not_decreasing",
    "LossSpike": "tdbg.rules.loss.spike",
    "MissingGradient": "tdbg.rules.weights.missing_gradient",
    "NLPSequenceRatio": "tdbg.rules.data.tokens",
    "NotInOptimizer": "tdbg.rules.weights.not_in_optimizer",
    "NotNormalizedData": "tdbg.rules.data.inputs",
    "Overfit": "tdbg.rules.loss.generalization",
    "Overtraining": "tdbg.rules.loss.generalization",
    "PoorWeightInitialization": "tdbg.rules.weights.initialization",
    "PrecisionLoss": "tdbg.rules.gradients.precision",
    "SaturatedActivation": "tdbg.rules.activations.saturated",
    "SimilarAcrossRuns": "tdbg.rules.runs.other_runs",
    "StalledTraining": "tdbg.rules.runs.stalled",
    "TensorVariance": "tdbg.rules.tensors.variance",
    "TrainedInEvalMode": "tdbg.rules.weights.eval_mode",
    "TreeDepth": "tdbg.rules.trees",
    "UnchangedTensor": "tdbg.rules.tensors.unchanged",
    "Underfitting": "tdbg.rules.loss.underfitting",
    "VanishingGradient": "tdbg.rules.gradients.vanishing",
    "WeightUpdateRatio": "tdbg.rules.weights.updates",
    "ZeroLearningRate": "tdbg.rules.weights.learning_rate",
}
# Rules that say nothing without parameters of their own: only where they are named.
NOT_BY_DEFAULT = frozenset({"SimilarAcrossRuns"})
# The one mutable global: rules of this process, by name.
_registered: dict[str, type[Rule]] = {}

RuleType = TypeVar("RuleType", bound=type[Rule])


def register(rule: RuleType) -> RuleType:
    """Make a class known under its name, as a decorator.

    Raises:
        ConfigurationError: If it is no frozen dataclass that derives from ``Rule``,
            or if another class has the name.
    """
    given: Any = rule
    name = getattr(given, "__name__", repr(given))
    is_rule = isinstance(given, type) and issubclass(given, Rule)
    frozen = getattr(getattr(given, "__dataclass_params__", None), "frozen", False)
    if not (is_rule and frozen):
        msg = f"{name} cannot be registered: a rule is a frozen dataclass and a Rule"
        raise ConfigurationError(msg)
    known = _registered.get(name)
    if known is not None and known.__module__ != rule.__module__:
        msg = f"{name} of {rule.__module__}: {known.__module__} has a rule of that name"
        raise ConfigurationError(msg)
    _registered[name] = rule
    return rule


def names() -> list[str]:
    """Names of all rules that can be asked for."""
    return sorted({*_registered, *BUILT_IN, *(point.name for point in _entry_points())})


def get(name: str) -> type[Rule]:
    """The class of that name, or of ``FILE.py:CLASS``.

    Raises:
        UnknownRule: If there is none; names the nearest.
        ConfigurationError: If another package brings it and cannot be imported, or
            the file or its class cannot be used.
    """
    if is_in_file(name):
        return load(name)
    if name in BUILT_IN:
        importlib.import_module(BUILT_IN[name])
    if name in _registered:
        return _registered[name]
    for point in _entry_points():
        if point.name == name:
            return _load(point)
    known = names()
    folded = {rule.casefold(): rule for rule in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    hint = (
        f"did you mean {folded[near[0]]}?" if near else f"there are {', '.join(known)}"
    )
    msg = f"there is no rule {name!r}; {hint}"
    raise UnknownRule(msg)


def make(name: str, **parameters: object) -> Rule:
    """The rule of that name, with these parameters.

    Raises:
        UnknownRule: If there is none.
        ConfigurationError: If it has no such parameter, lacks one or refuses a value.
    """
    rule = get(name)
    known = [field.name for field in parameters_of(rule)]
    for parameter in parameters:
        if parameter not in known:
            near = difflib.get_close_matches(parameter, known, n=1, cutoff=0.7)
            hint = f"did you mean {near[0]!r}? It" if near else "it"
            msg = f"{name} has no parameter {parameter!r}; {hint} has "
            msg += ", ".join(known) or "none"
            raise ConfigurationError(msg)
    # A list of a file is the tuple that a rule takes.
    given = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in parameters.items()
    }
    try:
        return rule(**given)
    except TypeError as error:
        msg = f"{name}: {str(error).removeprefix(f'{name}.__init__() ')}"
        raise ConfigurationError(msg) from error


def default_rules() -> tuple[Rule, ...]:
    """All rules of tdbg that need no parameters, with their defaults."""
    return tuple(make(name) for name in BUILT_IN if name not in NOT_BY_DEFAULT)


def describe(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """Rules with their parameters, as JSON can hold them."""
    return [
        {
            "name": rule.name,
            **{key: _plain(value) for key, value in rule.parameters().items()},
        }
        for rule in rules
    ]


def _plain(value: object) -> object:
    if isinstance(value, tuple | list | frozenset):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return str(value)


def _entry_points() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def _load(point: EntryPoint) -> type[Rule]:
    try:
        rule: type[Rule] = point.load()
    except Exception as error:
        msg = f"rule {point.name} ({point.value}) cannot be imported: {error}"
        raise ConfigurationError(msg) from error
    return register(rule)
