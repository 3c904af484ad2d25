"""``smdebug.core.collection`` and ``collection_manager``: the collections of a hook."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode, n_edits
from tdbg.compat.smdebug.exceptions import (
    SMDebugError,
    SMDebugTypeError,
    SMDebugValueError,
    translated,
)
from tdbg.compat.smdebug.left_out import refuse
from tdbg.config import collections as base
from tdbg.config import schedules
from tdbg.config.collections import Role
from tdbg.config.messages import check_known
from tdbg.config.patterns import NamePattern
from tdbg.config.tensor_names import PREFIXES
from tdbg.modes import ModeKeys

__all__ = [
    "DEFAULT_MXNET_COLLECTIONS",
    "DEFAULT_PYTORCH_COLLECTIONS",
    "DEFAULT_TF_COLLECTIONS",
    "DEFAULT_XGBOOST_COLLECTIONS",
    "LOSS_NAMES",
    "NON_HISTOGRAM_COLLECTIONS",
    "NON_REDUCTION_COLLECTIONS",
    "SCALAR_COLLECTIONS",
    "SM_METRIC_COLLECTIONS",
    "SUMMARIES_COLLECTIONS",
    "Collection",
    "CollectionKeys",
    "CollectionManager",
    "collections_directory",
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


# The roles that smdebug's hook captures.  `save_all` means no more here, so that it
# costs no more.
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
# Tensors that smdebug never captured belong to an expression only if it has this word,
# not if it happens to match their names.
_NAMED_ONLY = {
    role: PREFIXES[role]
    for role in (
        Role.BUFFER,
        Role.OPTIMIZER_STATE,
        Role.UPDATE,
        Role.GRADIENT_UNCLIPPED,
        Role.GRADIENT_LOCAL,
    )
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
DEFAULT_MXNET_COLLECTIONS = set(DEFAULT_PYTORCH_COLLECTIONS)
DEFAULT_TF_COLLECTIONS = DEFAULT_PYTORCH_COLLECTIONS | {
    CollectionKeys.METRICS,
    CollectionKeys.INPUTS,
    CollectionKeys.OUTPUTS,
    CollectionKeys.LAYERS,
    CollectionKeys.SM_METRICS,
    CollectionKeys.OPTIMIZER_VARIABLES,
}
DEFAULT_XGBOOST_COLLECTIONS = {
    CollectionKeys.ALL,
    CollectionKeys.DEFAULT,
    CollectionKeys.HYPERPARAMETERS,
    CollectionKeys.PREDICTIONS,
    CollectionKeys.LABELS,
    CollectionKeys.FEATURE_IMPORTANCE,
    CollectionKeys.AVERAGE_SHAP,
    CollectionKeys.FULL_SHAP,
    CollectionKeys.TREES,
}
# Collections of single numbers, of which smdebug has no reductions and histograms.
SM_METRIC_COLLECTIONS = {
    CollectionKeys.LOSSES,
    CollectionKeys.METRICS,
    CollectionKeys.SM_METRICS,
}
SCALAR_COLLECTIONS = SM_METRIC_COLLECTIONS | {
    CollectionKeys.FEATURE_IMPORTANCE,
    CollectionKeys.AVERAGE_SHAP,
}
SUMMARIES_COLLECTIONS = {CollectionKeys.TENSORFLOW_SUMMARIES}
NON_REDUCTION_COLLECTIONS = SCALAR_COLLECTIONS | SUMMARIES_COLLECTIONS
NON_HISTOGRAM_COLLECTIONS = SCALAR_COLLECTIONS | SUMMARIES_COLLECTIONS


def collections_directory(out_dir: str | os.PathLike[str]) -> str:
    """Return the directory where smdebug keeps the files of its collections."""
    return os.path.join(out_dir, "collections", "000000000", "")  # noqa: PTH118 - text


class Collection(base.Collection):
    """A named set of tensors, and what is saved of it.

    Args:
        name: Its name.
        include_regex: Expressions that find the names of its tensors.
        tensor_names: Names of further tensors.
        reduction_config: What is saved of the tensors; None: as the hook says.
        save_config: When they are saved; None, and for modes that it leaves out: as the
            hook says.
        save_histogram: Whether histograms of them are stored, if the hook exports to
            TensorBoard.

    Raises:
        SMDebugTypeError: If an argument has the wrong type.
        ConfigurationError: If an argument can never work.
    """

    def __init__(
        self,
        name: str,
        include_regex: str | Iterable[str] | None = None,
        tensor_names: Iterable[str] | None = None,
        reduction_config: schedules.ReductionConfig | None = None,
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
        """Names of tensors that belong to it beside those that expressions find."""
        return self._tensor_names

    @tensor_names.setter
    def tensor_names(self, names: Iterable[str] | None) -> None:
        if isinstance(names, str) or not isinstance(names, Iterable | None):
            msg = f"tensor_names must be a set or a list, not {names!r}"
            raise SMDebugTypeError(msg)
        self._tensor_names = set(names or ())
        self._note_change()

    def add_tensor_name(self, tname: str) -> None:
        """Add the name of a tensor."""
        self._tensor_names.add(tname)
        self._note_change()

    def remove_tensor_name(self, tname: str) -> None:
        """Remove the name of a tensor, if it was added."""
        self._tensor_names.discard(tname)
        self._note_change()

    def has_tensor_name(self, tname: str) -> bool:
        """Return whether the name was added."""
        return tname in self._tensor_names

    def include(self, t: Any) -> None:
        """Include the tensors whose names *t* finds, from the next step on.

        Raises:
            SMDebugTypeError: If *t* is neither text nor a list of texts.
            ConfigurationError: If it is not a regular expression.
        """
        if isinstance(t, list | tuple):
            for item in t:
                self.include(item)
        elif isinstance(t, str):
            super().include(t)
        else:
            msg = f"include takes text or a list of texts, not {t!r}"
            raise SMDebugTypeError(msg)

    @property
    def save_config(self) -> Any:
        """When the tensors are saved, a ``SaveConfig``; None: as the hook says."""
        return self._own_save_config

    @save_config.setter
    def save_config(self, value: object) -> None:
        if value is None or isinstance(value, SaveConfig):
            self._own_save_config = value
        elif isinstance(value, Mapping | SaveConfigMode | schedules.SaveConfig):
            self._own_save_config = SaveConfig.parse(value)
        else:
            msg = f"save_config must be a SaveConfig or map modes, not {value!r}"
            raise SMDebugTypeError(msg)
        self._note_change()

    @property
    def reduction_config(self) -> schedules.ReductionConfig | None:
        """The statistics and values to save; None: as the hook says."""
        return self._reduction_config

    @reduction_config.setter
    def reduction_config(self, value: object) -> None:
        if value is not None and not isinstance(value, schedules.ReductionConfig):
            msg = f"reduction_config must be a ReductionConfig, not {value!r}"
            raise SMDebugTypeError(msg)
        if value is not None and not isinstance(value, ReductionConfig):
            value = ReductionConfig.of_native(value)
        self._reduction_config = value
        self._note_change()

    @property
    def save_histogram(self) -> bool | None:
        """False: there are no histograms; None: as the hook says."""
        return self._save_histogram

    @save_histogram.setter
    def save_histogram(self, value: bool | None) -> None:
        self._save_histogram = None if value or value is None else False
        self._note_change()

    def has(self, name: str, role: Role) -> bool:
        """Return whether a tensor of this name and role belongs to it."""
        if super().has(name, role):
            return True
        if role is Role.SCALAR:  # Scalars are always recorded.
            return self.name == CollectionKeys.ALL
        # A module inside the model whose name says that it is a loss.
        return (
            self.name == CollectionKeys.LOSSES
            and role in {Role.OUTPUT, Role.OTHER}
            and LOSS_NAMES.search(name) is not None
        )

    def may_hold(self, role: Role) -> bool:
        """Return whether tensors of this role may belong to it."""
        if role is Role.SCALAR:  # Numbers of an optimizer's groups.
            return any("scalar/optimizer" in each for each in self.include_regex)
        return super().may_hold(role)

    def _patterns_for(self, role: Role) -> list[NamePattern]:
        found = super()._patterns_for(role)
        word = _NAMED_ONLY.get(role)
        if word is None:
            return found
        return [pattern for pattern in found if word in pattern.pattern]

    def as_json(self) -> dict[str, Any]:
        """Return what the collections event holds, without names of tensors."""
        save, reduction = self._own_save_config, self._reduction_config
        return {
            "include_regex": self.include_regex,
            "save_config": None if save is None else save.native().as_json(),
            "reduction_config": None if reduction is None else reduction.as_json(),
            "save_histogram": self.save_histogram,
        }

    def to_json_dict(self) -> dict[str, Any]:
        """Return a mapping in smdebug's form."""
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
        """Return JSON in smdebug's form."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> Self:
        """Make a collection from a mapping in smdebug's form.

        Raises:
            SMDebugValueError: If *params* has another form.
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
        """Make a collection from JSON in smdebug's form."""
        return cls.from_dict(json.loads(json_str))

    @classmethod
    def of_native(cls, native: base.Collection) -> Self:
        """Make a collection from one of tdbg's."""
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


def _of_modes(native: schedules.SaveConfig) -> SaveConfig:
    """Convert schedules; modes that follow the hook still do."""
    inherited = schedules.SaveConfigMode()
    found: dict[ModeKeys, SaveConfigMode | None] = {}
    for mode in ModeKeys:
        own = native.of(mode, inherited)
        if own is inherited:
            continue
        found[mode] = SaveConfigMode(
            own.save_interval, own.start_step, own.end_step, sorted(own.save_steps)
        )
    return SaveConfig(found)


class CollectionManager(base.CollectionRegistry):
    """The collections by name; ``get`` makes those that do not exist.

    Captured are the collections whose names the hook was given.

    Args:
        collections: Its first collections by name.
        create_default: Whether to make those that every hook has; None: as the
            framework's managers do.
    """

    kind: type[Collection] = Collection
    _creates_default = False

    def __init__(
        self,
        collections: Mapping[str, Collection] | None = None,
        create_default: bool | None = None,
    ) -> None:
        if create_default is None:
            create_default = self._creates_default
        self.built_in = BUILT_IN if create_default else ()
        self._n_workers = 1
        super().__init__()
        for item in (collections or {}).values():
            self.add(item)

    @property
    def revision(self) -> int:
        """Grows whenever membership or a configuration may have changed."""
        return super().revision + n_edits()

    @property
    def collections(self) -> dict[str, base.Collection]:
        """All collections by name."""
        return {item.name: item for item in self}

    def get_collections(self) -> dict[str, base.Collection]:
        """Return all collections by name."""
        return self.collections

    def get(self, name: str, create: bool = True) -> base.Collection:
        """Return the collection of this name, or make it if *create* allows it.

        Raises:
            SMDebugError: If there is no such collection, and *create* is False.
        """
        if name not in self._collections:
            if not create:
                msg = f"there is no collection {name!r}"
                raise SMDebugError(msg)
            return self._own(self._make(name))
        return self._collections[name]

    def create_collection(
        self, name: str, cls: type[base.Collection] | None = None
    ) -> None:
        """Make a collection, unless there is one of that name."""
        if name not in self._collections:
            self._own((cls or self.kind)(name))

    def add(self, arg: object) -> None:
        """Add this collection, or make one of this name.

        It replaces a collection of the same name, and is captured if the hook was
        given the name.

        Raises:
            SMDebugTypeError: If *arg* is neither a collection nor a name.
        """
        if isinstance(arg, str):
            self.get(arg)
        elif isinstance(arg, base.Collection):
            if not isinstance(arg, Collection):
                arg = self.kind.of_native(arg)
            self._own(arg)
        else:
            msg = f"expected a Collection, not {arg!r}"
            raise SMDebugTypeError(msg)

    def merge(self, given: base.Collection) -> None:
        """Configure the collection of that name, made if there is none, as *given*.

        Expressions are added to those that it has.  The schedules are replaced; the
        reductions and histograms are if *given* says something of them.
        """
        own: Any = self.get(given.name)
        own.include(given.include_regex)
        saved = given.save_config
        own.save_config = None if saved is None else _of_modes(saved)
        if given.reduction_config is not None:
            own.reduction_config = given.reduction_config
        if given.save_histogram is not None:
            own.save_histogram = given.save_histogram

    # ---- files -----------------------------------------------------------------

    def get_num_workers(self) -> int:
        """Return the number of workers that its file tells."""
        return self._n_workers

    def set_num_workers(self, num_workers: int | str) -> None:
        """Set the number of workers that its file tells."""
        self._n_workers = int(num_workers)

    def update_meta(self, meta: Mapping[str, Any]) -> None:
        """Set what its file tells beside the collections: ``num_workers``.

        Raises:
            SMDebugTypeError: If *meta* is not a mapping.
        """
        given: object = meta
        if not isinstance(given, Mapping):
            msg = f"meta must be a mapping, not {meta!r}"
            raise SMDebugTypeError(msg)
        self.set_num_workers(given.get("num_workers", self._n_workers))

    def to_json_dict(self) -> dict[str, Any]:
        """Return a mapping in smdebug's form."""
        every: dict[str, Any] = self.collections
        return {
            "collections": {name: item.to_json_dict() for name, item in every.items()},
            "_meta": {"num_workers": self._n_workers},
        }

    def export(self, out_dir: str | os.PathLike[str], filename: str) -> None:
        """Write the collections where smdebug has them below *out_dir*.

        tdbg does not read the file: a run has its collections in its records.
        """
        path = Path(collections_directory(out_dir)) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json_dict()))

    @classmethod
    def load(
        cls,
        filename: str | os.PathLike[str],
        collection_class: type[Collection] | None = None,
    ) -> Self | None:
        """Read a file that ``export`` wrote."""
        text = Path(filename).read_text()
        return cls.load_from_string(text, collection_class)

    @classmethod
    def load_from_string(
        cls, s: str | None, collection_class: type[Collection] | None = None
    ) -> Self | None:
        """Make the collections that JSON in smdebug's form says; None for ``None``.

        Raises:
            SMDebugValueError: If it has another form.
        """
        if s is None or s == "None":
            return None
        params = json.loads(s)
        if not isinstance(params, dict) or not isinstance(
            params.get("collections"), dict
        ):
            msg = "the JSON of collections must have a mapping 'collections'"
            raise SMDebugValueError(msg)
        with translated():
            check_known(params, ("collections", "_meta"))
        made = cls(create_default=False)
        for entry in params["collections"].values():
            made.add((collection_class or cls.kind).from_dict(entry))
        made.update_meta(params.get("_meta", {}))
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CollectionManager):
            return NotImplemented
        return self.collections == other.collections

    __hash__ = base.CollectionRegistry.__hash__

    def unconfigured(self, names: Iterable[str]) -> list[str]:
        """Return the names among *names* whose collections select nothing, sorted."""
        empty = [self._collections[name] for name in names if name in self._collections]
        return sorted(
            item.name
            for item in empty
            if item.name not in self.built_in
            and not item.include_regex
            and not item.tensor_names
        )

    def _make(self, name: str) -> base.Collection:
        return self.kind(name)


__getattr__ = refuse(__name__)
