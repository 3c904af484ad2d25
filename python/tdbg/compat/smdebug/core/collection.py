"""``smdebug.core.collection``: named sets of tensors.

The built-in ones hold what smdebug's expressions find among smdebug's names; here
they go by what a tensor is, which needs no expression. The names that smdebug gave
to other frameworks' collections are plain custom ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from tdbg import collections, config
from tdbg.collections import Role
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode
from tdbg.compat.smdebug.exceptions import SMDebugTypeError, SMDebugValueError
from tdbg.modes import ModeKeys
from tdbg.patterns import NamePattern

__all__ = [
    "DEFAULT_PYTORCH_COLLECTIONS",
    "LOSS_NAMES",
    "Collection",
    "CollectionKeys",
]

# Names whose tensors smdebug's collection `losses` holds.
LOSS_NAMES = re.compile("[Ll]oss_(?!input).*output")


class CollectionKeys:
    """Names of collections, as text."""

    DEFAULT = "default"
    ALL = "all"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    LOSSES = "losses"
    BIASES = "biases"
    LAYERS = "layers"
    SM_METRICS = "sm_metrics"
    OPTIMIZER_VARIABLES = "optimizer_variables"
    TENSORFLOW_SUMMARIES = "tensorflow_summaries"
    METRICS = "metrics"
    HYPERPARAMETERS = "hyperparameters"
    PREDICTIONS = "predictions"
    LABELS = "labels"
    FEATURE_IMPORTANCE = "feature_importance"
    AVERAGE_SHAP = "average_shap"
    FULL_SHAP = "full_shap"
    TREES = "trees"


# What smdebug's hook captures at all; a training has no more roles here either, so
# that `save_all` costs no more than it did.
_ROLES: dict[str, frozenset[Role]] = {
    CollectionKeys.ALL: frozenset(
        {
            Role.WEIGHT,
            Role.BIAS,
            Role.GRADIENT,
            Role.INPUT,
            Role.MODEL_INPUT,
            Role.PREDICTION,
            Role.LABEL,
            Role.OUTPUT,
            Role.LOSS,
            Role.OTHER,
        }
    ),
    CollectionKeys.DEFAULT: frozenset(),
    CollectionKeys.WEIGHTS: frozenset({Role.WEIGHT}),
    CollectionKeys.BIASES: frozenset({Role.BIAS}),
    CollectionKeys.GRADIENTS: frozenset({Role.GRADIENT}),
    CollectionKeys.LOSSES: frozenset({Role.LOSS}),
    "scalars": frozenset({Role.SCALAR}),
}
# What smdebug never captured is found by expressions that name it, not by any that
# its name happens to match.
_NAMED_ONLY = {
    Role.BUFFER: "buffer/",
    Role.OPTIMIZER_STATE: "optimizer/",
    Role.UPDATE: "update/",
    Role.GRADIENT_UNCLIPPED: "gradient_unclipped/",
}
DEFAULT_PYTORCH_COLLECTIONS = {
    CollectionKeys.ALL,
    CollectionKeys.DEFAULT,
    CollectionKeys.WEIGHTS,
    CollectionKeys.BIASES,
    CollectionKeys.GRADIENTS,
    CollectionKeys.LOSSES,
}
BUILT_IN = tuple(_ROLES)


class Collection(collections.Collection):
    """A named set of tensors, and what is saved of it.

    Args:
        name: Its name.
        include_regex: Tensors whose names one of these finds belong to it.
        tensor_names: And these.
        reduction_config: What is saved of it; None follows the hook.
        save_config: When; None, and modes that it leaves out, follow the hook.
        save_histogram: Whether histograms of it are stored where the hook exports
            to TensorBoard.

    Raises:
        SMDebugTypeError: If an argument has the wrong type.
        ConfigurationError: If it can never work.
    """

    def __init__(
        self,
        name: str,
        include_regex: str | Iterable[str] | None = None,
        tensor_names: Iterable[str] | None = None,
        reduction_config: config.ReductionConfig | None = None,
        save_config: Any = None,
        save_histogram: bool = True,
    ) -> None:
        super().__init__(name, reduction_config=reduction_config)
        self.roles = _ROLES.get(self.name, frozenset())
        self.tensor_names = tensor_names
        self.save_config = save_config
        self.save_histogram = save_histogram
        if include_regex:
            self.include(include_regex)

    @property
    def tensor_names(self) -> set[str]:
        """Names that belong to it whatever its expressions find."""
        return self._tensor_names

    @tensor_names.setter
    def tensor_names(self, names: Iterable[str] | None) -> None:
        if isinstance(names, str) or not isinstance(names, Iterable | None):
            msg = f"tensor_names must be a set or a list, not {names!r}"
            raise SMDebugTypeError(msg)
        self._tensor_names = set(names or ())
        self._note_change()

    def add_tensor_name(self, tname: str) -> None:
        """Put a name into it."""
        self._tensor_names.add(tname)
        self._note_change()

    def remove_tensor_name(self, tname: str) -> None:
        """Take a name out of it, if it is there."""
        self._tensor_names.discard(tname)
        self._note_change()

    def has_tensor_name(self, tname: str) -> bool:
        """Whether the name was put into it."""
        return tname in self._tensor_names

    def include(self, regex: Any) -> None:
        """Tensors whose names match belong to it from the next step on.

        Raises:
            SMDebugTypeError: If it is no text, nor a list of texts.
            ConfigurationError: If it is no regular expression.
        """
        if isinstance(regex, list | tuple):
            for item in regex:
                self.include(item)
        elif isinstance(regex, str):
            super().include(regex)
        else:
            msg = f"include takes text or a list of texts, not {regex!r}"
            raise SMDebugTypeError(msg)

    @property
    def save_config(self) -> Any:
        """When it is saved, a ``SaveConfig``; None where it follows the hook."""
        return self._own_save_config

    @save_config.setter
    def save_config(self, value: object) -> None:
        if value is None or isinstance(value, SaveConfig):
            self._own_save_config = value
        elif isinstance(value, Mapping | SaveConfigMode | config.SaveConfig):
            self._own_save_config = SaveConfig.parse(value)
        else:
            msg = f"save_config must be a SaveConfig or map modes, not {value!r}"
            raise SMDebugTypeError(msg)
        self._note_change()

    @property
    def reduction_config(self) -> config.ReductionConfig | None:
        """What is saved of it; None where it follows the hook."""
        return self._reduction_config

    @reduction_config.setter
    def reduction_config(self, value: object) -> None:
        if value is not None and not isinstance(value, config.ReductionConfig):
            msg = f"reduction_config must be a ReductionConfig, not {value!r}"
            raise SMDebugTypeError(msg)
        if value is not None and not isinstance(value, ReductionConfig):
            value = ReductionConfig.of_native(value)
        self._reduction_config = value
        self._note_change()

    @property
    def save_histogram(self) -> bool | None:
        """False if it has no histograms; None if the hook says whether it has."""
        return self._save_histogram

    @save_histogram.setter
    def save_histogram(self, value: bool | None) -> None:
        self._save_histogram = None if value or value is None else False
        self._note_change()

    def has(self, name: str, role: Role) -> bool:
        """Whether a tensor of this name and role belongs to it."""
        if super().has(name, role):
            return True
        if role is Role.SCALAR:  # Recorded always, whoever may hold it.
            return self.name == CollectionKeys.ALL
        # A module inside the model that is a loss by its name.
        return (
            self.name == CollectionKeys.LOSSES
            and role in {Role.OUTPUT, Role.OTHER}
            and LOSS_NAMES.search(name) is not None
        )

    def may_hold(self, role: Role) -> bool:
        """Whether tensors of this role may belong to it, by role or expression."""
        if role is Role.SCALAR:  # Those of an optimizer's groups; others are given.
            return any("scalar/optimizer" in each for each in self.include_regex)
        return super().may_hold(role)

    def _patterns_for(self, role: Role) -> list[NamePattern]:
        found = super()._patterns_for(role)
        word = _NAMED_ONLY.get(role)
        if word is None:
            return found
        return [pattern for pattern in found if word in pattern.pattern]

    def as_json(self) -> dict[str, Any]:
        """As it stands in the collections event, without its tensors."""
        save, reduction = self._own_save_config, self._reduction_config
        return {
            "include_regex": self.include_regex,
            "save_config": None if save is None else save.native().as_json(),
            "reduction_config": None if reduction is None else reduction.as_json(),
            "save_histogram": self.save_histogram,
        }

    def to_json_dict(self) -> dict[str, Any]:
        """As a mapping, in smdebug's form."""
        reduction = self._reduction_config
        return {
            "name": self.name,
            "include_regex": self.include_regex,
            "tensor_names": sorted(self._tensor_names),
            "reduction_config": reduction.to_json_dict()
            if isinstance(reduction, ReductionConfig)
            else None,
            "save_config": None
            if self._own_save_config is None
            else self._own_save_config.to_json_dict(),
            "save_histogram": self.save_histogram is not False,
        }

    def to_json(self) -> str:
        """As JSON, in smdebug's form."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> Self:
        """From smdebug's form.

        Raises:
            SMDebugValueError: If it is none.
        """
        given: object = params
        if not isinstance(given, Mapping) or "name" not in given:
            msg = f"a collection must be a mapping with a name, not {given!r}"
            raise SMDebugValueError(msg)
        return cls(
            name=params["name"],
            include_regex=params.get("include_regex") or None,
            tensor_names=params.get("tensor_names") or (),
            reduction_config=ReductionConfig.from_dict(params.get("reduction_config")),
            save_config=SaveConfig.from_dict(params.get("save_config")),
            save_histogram=params.get("save_histogram", True),
        )

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """From JSON."""
        return cls.from_dict(json.loads(json_str))

    @classmethod
    def of_native(cls, native: collections.Collection) -> Self:
        """From one of tdbg's: as a trial or a configuration file has it."""
        saved = native.save_config
        return cls(
            native.name,
            native.include_regex,
            native.tensor_names,
            native.reduction_config,
            None if saved is None else _of_modes(saved),
            native.save_histogram is not False,
        )

    def _note_change(self) -> None:
        self._changes.count += 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Collection):
            return NotImplemented
        return self.to_json_dict() == other.to_json_dict()

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return str(self.to_json_dict())

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, {self.include_regex!r})"


def _of_modes(native: config.SaveConfig) -> SaveConfig:
    """Modes that follow the hook there follow it here."""
    inherited = config.SaveConfigMode()
    found: dict[ModeKeys, SaveConfigMode | None] = {}
    for mode in ModeKeys:
        own = native.of(mode, inherited)
        if own is inherited:
            continue
        found[mode] = SaveConfigMode(
            own.save_interval, own.start_step, own.end_step, sorted(own.save_steps)
        )
    return SaveConfig(found)
